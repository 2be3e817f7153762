/**
 * Equal reads of one turn of the event loop share one result. The read begins after the turn's I/O, so no caller gets a
 * result older than its request. Under load, a hundred equal reads cost as much as one read.
 */
export class ReadCoalescer<Key, Result> {
  readonly #pending = new Map<Key, Promise<Result>>()

  read(key: Key, work: () => Promise<Result>): Promise<Result> {
    const pending = this.#pending.get(key)
    if (pending) return pending
    const result = new Promise<Result>((resolve) => {
      setImmediate(() => {
        this.#pending.delete(key)
        resolve(Promise.try(work))
      })
    })
    this.#pending.set(key, result)
    return result
  }
}
