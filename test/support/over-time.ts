import { until } from './until.ts'

/** Advances the fake clock until the promise is settled: the service waits for its runtime by that clock. */
export async function overTime<T>(world: { pass(ms: number): Promise<void> }, promise: Promise<T>): Promise<T> {
  let isSettled = false
  const settle = () => {
    isSettled = true
  }
  promise.then(settle, settle)
  await until(async () => {
    await world.pass(100)
    return isSettled
  })
  return promise
}
