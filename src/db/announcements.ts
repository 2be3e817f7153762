/** What a commit announces: events for the streams, deliveries of pushes, and endpoints and deliveries of webhooks. */
export const TOPICS = ['events', 'deliveries', 'webhooks'] as const
export type Topic = (typeof TOPICS)[number]

export type TopicListener = (topic: Topic) => void

/**
 * Notifies listeners in this process after a commit. It is only a hint to check now: a listener that misses one checks by
 * itself within seconds.
 */
export class Announcements {
  readonly #listeners = new Set<TopicListener>()

  listen(listener: TopicListener): () => void {
    this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }

  /** Never throws: the commit has happened, and after one listener fails, the others must still get the hint. */
  publish(topics: ReadonlySet<Topic>): void {
    for (const topic of topics) for (const listener of this.#listeners) hint(listener, topic)
  }
}

function hint(listener: TopicListener, topic: Topic): void {
  try {
    listener(topic)
  } catch {
    // The listener missed a hint, and checks by itself within seconds.
  }
}
