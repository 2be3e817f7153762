import { mayPass, NotProjectApi } from '../errors.ts'
import { LinkedAbort } from '../http/abort.ts'
import type { Connection, RequestOptions } from '../http/connection.ts'
import { isOutage } from '../http/outage.ts'
import { type SseBlock, SseParser } from './sse-parser.ts'
import { onHidden, whenShown } from './visibility.ts'

export interface FollowOptions extends Pick<RequestOptions, 'query' | 'signal'> {
  /** Continue after this id. */
  after?: string | null | undefined
  /** Called with every id, also an id without a message. Store the last id to resume after a page load. */
  onCursor?: ((id: string) => void) | undefined
  /** Called when the stream is open: every later event arrives. Called again after each reconnect. */
  onOpen?: (() => void) | undefined
}

/** The body of this `fetch` cannot be read as it arrives: the caller has to poll. */
export class CannotStream extends Error {}

/** `onCursor` threw its `cause`. A reconnect would not help. */
class CallbackFailed extends Error {}

/** Why the stream of a hidden page is closed. */
const HIDDEN = new Error('The page is hidden')

/** The service sends a comment every 15 s. After 45 s of silence the connection counts as dead. */
const WATCHDOG_MS = 45_000
const FIRST_PAUSE_MS = 1_000
const LONGEST_PAUSE_MS = 30_000
/** The client gives up after this many failures before the first success: the address is probably wrong. */
const MAX_FIRST_FAILURES = 5

/**
 * The messages of a stream. Reconnects and resumes after each break. A hidden page has no stream: it is closed, and opened
 * again after its last id when the page is shown. Ends without an error when the signal aborts. Rejects
 * if the service refuses the stream permanently, if the stream never opens, or if `onCursor` throws.
 */
export async function* followStream(
  connection: Connection,
  path: string,
  { query = {}, after = null, signal, onCursor, onOpen }: FollowOptions,
): AsyncGenerator<SseBlock & { data: string }> {
  const { clock } = connection
  const silence = { clock, ms: WATCHDOG_MS, message: `The stream was silent for ${WATCHDOG_MS / 1_000} s` }
  let lastEventId = after
  let failures = 0
  let wasOpen = false
  let retryMs = FIRST_PAUSE_MS
  const reportCursor = (id: string) => {
    try {
      onCursor?.(id)
    } catch (cause) {
      throw new CallbackFailed('onCursor failed', { cause })
    }
  }
  while (!signal?.aborted) {
    let retryAfterMs = 0
    if (connection.hides) await whenShown(signal)
    const abort = new LinkedAbort(signal)
    const unwatch = connection.hides ? onHidden(clock, () => abort.abort(HIDDEN)) : () => {}
    try {
      const headers = { accept: 'text/event-stream', ...(lastEventId !== null && { 'last-event-id': lastEventId }) }
      const opened = await abort.within(silence, () => connection.open(path, { query, headers }, abort))
      const reader = readerOf(opened, abort.signal)
      wasOpen = true
      failures = 0
      onOpen?.()
      const parser = new SseParser()
      const decoder = new TextDecoder()
      // The timer runs only while the client waits for the connection, not while the caller handles a message.
      const read = () => abort.within(silence, () => reader.read())
      for (let piece = await read(); !piece.done; piece = await read()) {
        const blocks = parser.feed(decoder.decode(piece.value, { stream: true }))
        retryMs = parser.retryMs ?? retryMs
        for (const { data, ...block } of blocks) {
          if (data !== null) yield { ...block, data }
          if (block.id === '') continue
          lastEventId = block.id
          reportCursor(block.id)
        }
      }
      // A regular end, for example of an expired token, is no failure: `retry` of the service sets the pause.
    } catch (error) {
      if (error instanceof CallbackFailed) throw error.cause
      if (signal?.aborted) return
      if (abort.reason === HIDDEN) continue
      failures += 1
      const helpsToWait = wasOpen ? isOutage(error) : mayPass(error) && failures <= MAX_FIRST_FAILURES
      if (error instanceof CannotStream || !helpsToWait) throw error
      retryAfterMs = ((error as { retryAfter?: number | null }).retryAfter ?? 0) * 1_000
    } finally {
      unwatch()
      abort.unlink()
      abort.abort()
    }
    if (abort.reason === HIDDEN) continue
    const backoffMs = Math.min(retryMs * 2 ** failures, LONGEST_PAUSE_MS) * (0.5 + connection.random() / 2)
    await clock.sleep(retryAfterMs + backoffMs, signal)
  }
}

function readerOf({ status, url, headers, body }: Response, signal: AbortSignal) {
  if (!headers.get('content-type')?.startsWith('text/event-stream')) {
    throw new NotProjectApi({ url, status, problem: 'the answer is not an event stream' })
  }
  if (typeof body?.getReader !== 'function') throw new CannotStream()
  const reader = body.getReader()
  // For a `fetch` that does not listen to its signal.
  signal.addEventListener('abort', () => void reader.cancel().catch(() => {}), { once: true })
  return reader
}
