/** What a commit may have brought that somebody waits for. */
export type Topic = 'events' | 'deliveries'

export type TopicListener = (topic: Topic) => void

/** Tells listeners of this process what commits brought. Only a hint to look now: whoever misses it finds out later. */
export class Announcements {
  readonly #listeners = new Set<TopicListener>()

  listen(listener: TopicListener): () => void {
    this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }

  /** Never throws: what was committed stays committed, and the other listeners hear of it too. */
  publish(topics: ReadonlySet<Topic>): void {
    for (const topic of topics) for (const listener of this.#listeners) hint(listener, topic)
  }
}

function hint(listener: TopicListener, topic: Topic): void {
  try {
    listener(topic)
  } catch {
    // It missed a hint, and looks by itself in a few seconds.
  }
}
