import { setTimeout as pause } from 'node:timers/promises'
import { PATIENCE_MS } from './patience.ts'

const BETWEEN_LOOKS_MS = 10

/** Polls until the condition holds: for work of another process, which sends no event to the test. */
export async function until(holds: () => boolean | Promise<boolean>, patienceMs = PATIENCE_MS): Promise<void> {
  const deadline = Date.now() + patienceMs
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`It did not come true in ${patienceMs} ms: ${holds}`)
    await pause(BETWEEN_LOOKS_MS)
  }
}
