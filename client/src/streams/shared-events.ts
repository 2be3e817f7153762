import { NotProjectApi, parseJson } from '../errors.ts'
import type { Connection } from '../http/connection.ts'
import type { ApiEvent } from '../types.ts'
import { CannotStream, type FollowOptions, followStream } from './follow-stream.ts'

export interface EventListener {
  onEvent(event: ApiEvent): void
  /** Called when the stream is open: every later event arrives. State that was read earlier may be old. */
  onOpen?(): void
  /** Called when the service refuses the stream. The stream is opened again after a pause while there are listeners. */
  onError?(error: unknown): void
}

/** How long the stream stays open without listeners: a page often opens the next listener at once. */
const GRACE_MS = 1_000
/** The pause before a refused stream is opened again: the user may sign in again meanwhile. */
const PAUSE_AFTER_ERROR_MS = 15_000
/** The pause between two resets if bodies do not stream. */
const POLL_MS = 10_000
/** If a loop has more unread events than this, one `reset` replaces them. */
const MAX_WAITING = 1_000

/** One stream of the caller's events for all listeners of a client: a browser has only six connections per host. */
export class SharedEvents {
  readonly #connection: Connection
  readonly #listeners = new Set<EventListener>()
  #running: AbortController | undefined
  #isOpen = false

  constructor(connection: Connection) {
    this.#connection = connection
  }

  listen(listener: EventListener): () => void {
    this.#listeners.add(listener)
    if (!this.#running) void this.#run()
    else if (this.#isOpen) queueMicrotask(() => this.#listeners.has(listener) && listener.onOpen?.())
    return () => {
      this.#listeners.delete(listener)
      if (this.#listeners.size === 0) void this.#stopSoon()
    }
  }

  /** The events as a loop reads them, until the signal aborts. It throws when the service refuses the stream. */
  async *iterate(signal: AbortSignal | undefined): AsyncGenerator<ApiEvent> {
    let waiting: ApiEvent[] = []
    let refusal: { error: unknown } | undefined
    let wake = () => {}
    const stop = () => wake()
    signal?.addEventListener('abort', stop, { once: true })
    const leave = this.listen({
      onEvent: (event) => {
        waiting.push(event)
        if (waiting.length > MAX_WAITING) waiting = [resetOf(event)]
        wake()
      },
      onError: (error) => {
        refusal = { error }
        wake()
      },
    })
    try {
      while (!signal?.aborted) {
        const event = waiting.shift()
        if (event) yield event
        else if (refusal) throw refusal.error
        else {
          await new Promise<void>((resolve) => {
            wake = resolve
          })
        }
      }
    } finally {
      signal?.removeEventListener('abort', stop)
      leave()
    }
  }

  async #run(): Promise<void> {
    const running = new AbortController()
    const { signal } = running
    this.#running = running
    const onOpen = () => {
      this.#isOpen = true
      this.#notify((listener) => listener.onOpen?.())
    }
    // Kept when the service refuses the stream, so that the next one misses no event. It also fits the token of another
    // user: all users have one log, and the service shows each user only their own events.
    let after: string | null = null
    const onCursor = (id: string) => {
      after = id
    }
    while (!signal.aborted) {
      try {
        for await (const event of followEvents(this.#connection, { signal, after, onCursor, onOpen })) {
          this.#notify((listener) => listener.onEvent(event))
        }
      } catch (error) {
        if (signal.aborted) return
        this.#isOpen = false
        this.#notify((listener) => listener.onError?.(error))
        await this.#connection.clock.sleep(PAUSE_AFTER_ERROR_MS, signal)
      }
    }
  }

  /** Calls every listener. If one throws, the platform reports the error and the other listeners continue. */
  #notify(call: (listener: EventListener) => void): void {
    for (const listener of [...this.#listeners]) {
      try {
        call(listener)
      } catch (error) {
        queueMicrotask(() => {
          throw error
        })
      }
    }
  }

  async #stopSoon(): Promise<void> {
    const running = this.#running
    await this.#connection.clock.sleep(GRACE_MS, running?.signal)
    if (this.#listeners.size > 0 || this.#running !== running) return
    this.#running = undefined
    this.#isOpen = false
    running?.abort()
  }
}

/** The events of one stream. If bodies do not stream, a `reset` every 10 s replaces them. */
export async function* followEvents(connection: Connection, options: FollowOptions): AsyncGenerator<ApiEvent> {
  const { signal, onOpen } = options
  if (connection.streams) {
    try {
      for await (const { data } of followStream(connection, '/v1/events', options)) {
        const event = parseJson(data) as ApiEvent | undefined
        if (typeof event?.type !== 'string' || typeof event.data !== 'object') {
          throw new NotProjectApi({ url: 'The stream', problem: 'its events are not those of the service' })
        }
        yield event
      }
      return
    } catch (error) {
      if (!(error instanceof CannotStream)) throw error
      connection.streams = false
    }
  }
  onOpen?.()
  while (!signal?.aborted) {
    await connection.clock.sleep(POLL_MS, signal)
    const created_at = new Date(connection.clock.now()).toISOString()
    if (!signal?.aborted) yield resetOf({ id: '', created_at })
  }
}

function resetOf({ id, created_at }: Pick<ApiEvent, 'id' | 'created_at'>): ApiEvent {
  return { id, type: 'reset', created_at, data: {} }
}
