export type MaybePromise<T> = T | Promise<T>

/**
 * Calls `next` now if the value is not a promise, and later if it is. The gate needs this: a request with a cached token
 * reaches its handler in the same turn of the event loop. So load shedding knows the cost of this request before it admits
 * the next one of the same packet. It also saves 1 µs of CPU time per request.
 */
export function chain<T, U>(value: MaybePromise<T>, next: (value: T) => MaybePromise<U>): MaybePromise<U> {
  return value instanceof Promise ? value.then(next) : next(value)
}
