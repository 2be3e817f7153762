/** Concurrent calls for one key share one execution. A later call starts a new execution. */
export class SingleFlight<Key, Value> {
  readonly #inFlight = new Map<Key, Promise<Value>>()

  run(key: Key, work: () => Promise<Value>): Promise<Value> {
    const running = this.#inFlight.get(key)
    if (running) return running
    // `Promise.try`: if the work throws synchronously, the entry is still deleted after it was added, not before.
    const started = Promise.try(work).finally(() => this.#inFlight.delete(key))
    this.#inFlight.set(key, started)
    return started
  }
}
