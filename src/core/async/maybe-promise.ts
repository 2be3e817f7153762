export type MaybePromise<T> = T | Promise<T>

/** Goes on with a value now if it is there, and later only if it must: a hot path pays for no promise it does not need. */
export function chain<T, U>(value: MaybePromise<T>, next: (value: T) => MaybePromise<U>): MaybePromise<U> {
  return value instanceof Promise ? value.then(next) : next(value)
}
