import type { Clock } from '../core/clock.ts'
import { RuntimeUnavailable } from './check-errors.ts'

/** A longer event is cut here, so that memory stays bounded. */
const MAX_EVENT_LENGTH = 1024 * 1024

/** One server-sent event of a run. */
export interface RunStreamEvent {
  /** Null for an event that cannot be resumed from. */
  id: string | null
  event: string
  data: string
  /** The data was too long and lacks its end. */
  isCut: boolean
}

interface RunStreamRequest {
  fetch: typeof fetch
  clock: Clock
  url: string
  headers: Record<string, string>
  /** The id of the last event seen. `-1` replays the run from its start. */
  after: string
  /** How long the runtime may take to accept the request. The stream itself may be silent for any time. */
  acceptTimeoutMs: number
  signal: AbortSignal
}

/**
 * Yields the events of a run as they arrive, those of one network read together. Ends when the runtime ends the stream or
 * the signal aborts. Throws if the runtime does not accept the request or the connection breaks.
 */
export async function* followRunStream(request: RunStreamRequest): AsyncGenerator<readonly RunStreamEvent[]> {
  const { fetch, clock, url, headers, after, acceptTimeoutMs, signal } = request
  const attempt = new AbortController()
  const accepted = new AbortController()
  const stop = () => attempt.abort()
  if (signal.aborted) return
  signal.addEventListener('abort', stop, { once: true })
  void clock.sleep(acceptTimeoutMs, accepted.signal).then(() => {
    if (!accepted.signal.aborted) attempt.abort(new Error(`no answer within ${acceptTimeoutMs} ms`))
  })
  try {
    const response = await fetch(url, {
      // A compressed stream could be held back by a proxy until a block is full.
      headers: { accept: 'text/event-stream', 'accept-encoding': 'identity', 'last-event-id': after, ...headers },
      redirect: 'manual',
      signal: attempt.signal,
    })
    accepted.abort()
    const isStream = /^text\/event-stream\b/i.test(response.headers.get('content-type') ?? '')
    if (response.status !== 200 || !isStream) {
      throw new RuntimeUnavailable('not_a_stream', { status: response.status })
    }
    const parser = new RunStreamParser()
    const decoder = new TextDecoder()
    for await (const chunk of response.body ?? []) {
      const events = parser.push(decoder.decode(chunk, { stream: true }))
      if (events.length > 0) yield events
    }
  } catch (error) {
    if (signal.aborted) return
    if (error instanceof RuntimeUnavailable) throw error
    throw new RuntimeUnavailable('stream_broke', { cause: error })
  } finally {
    accepted.abort()
    attempt.abort()
    signal.removeEventListener('abort', stop)
  }
}

/** Parses server-sent events, with a bound on the length of each. */
export class RunStreamParser {
  #line = ''
  #event = ''
  #id: string | null = null
  #data: string | null = null
  #isCut = false
  /** The last text ended with CR: a LF at the start of the next one belongs to it. */
  #endedWithCr = false

  push(text: string): RunStreamEvent[] {
    const events: RunStreamEvent[] = []
    const lineEnds = /\r\n?|\n/g
    let from = this.#endedWithCr && text.startsWith('\n') ? 1 : 0
    if (text !== '') this.#endedWithCr = text.endsWith('\r')
    lineEnds.lastIndex = from
    for (let end = lineEnds.exec(text); end; end = lineEnds.exec(text)) {
      this.#extendLine(text.slice(from, end.index))
      from = lineEnds.lastIndex
      const event = this.#endLine()
      if (event) events.push(event)
    }
    this.#extendLine(text.slice(from))
    return events
  }

  #extendLine(part: string): void {
    const room = MAX_EVENT_LENGTH - this.#line.length
    if (part.length > room) this.#isCut = true
    this.#line += part.length > room ? part.slice(0, room) : part
  }

  #endLine(): RunStreamEvent | null {
    const line = this.#line
    this.#line = ''
    if (line === '') return this.#dispatch()
    const colon = line.indexOf(':')
    const name = colon < 0 ? line : line.slice(0, colon)
    const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1)
    if (name === 'event') this.#event = value
    else if (name === 'id') this.#id = value
    else if (name === 'data') this.#addData(value)
    return null
  }

  #addData(value: string): void {
    const data = this.#data === null ? value : `${this.#data}\n${value}`
    if (data.length > MAX_EVENT_LENGTH) this.#isCut = true
    this.#data = data.slice(0, MAX_EVENT_LENGTH)
  }

  #dispatch(): RunStreamEvent | null {
    const event = { id: this.#id, event: this.#event, data: this.#data ?? '', isCut: this.#isCut }
    const hasData = this.#data !== null
    this.#event = ''
    this.#id = null
    this.#data = null
    this.#isCut = false
    return hasData ? event : null
  }
}
