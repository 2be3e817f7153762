/**
 * Equal questions of one turn of the event loop share one answer. The work for it begins when the turn's I/O is done, so
 * nobody gets an answer older than its question, and under load a hundred readers cost as much as one.
 */
export class TurnShare<Key, Answer> {
  readonly #asked = new Map<Key, Promise<Answer>>()

  ask(key: Key, work: () => Promise<Answer>): Promise<Answer> {
    const shared = this.#asked.get(key)
    if (shared) return shared
    const answer = new Promise<Answer>((resolve) => {
      setImmediate(() => {
        this.#asked.delete(key)
        resolve(Promise.try(work))
      })
    })
    this.#asked.set(key, answer)
    return answer
  }
}
