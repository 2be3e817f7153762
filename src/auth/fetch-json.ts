import { describeFailure, readText } from '../core/exchange.ts'

export interface FetchJsonOptions {
  url: string
  fetch: typeof fetch
  timeoutMs: number
  maxBytes: number
  signal: AbortSignal
}

/** Reads one JSON document, or rejects: within its time, headers and body together, within its size, without following a redirect. */
export async function fetchJson({ url, fetch, timeoutMs, maxBytes, signal }: FetchJsonOptions): Promise<unknown> {
  const attempt = new AbortController()
  // Not AbortSignal.any over AbortSignal.timeout: the timer is cleared here, so a fast answer leaves nothing behind.
  const timer = setTimeout(() => attempt.abort(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs)
  const stop = () => attempt.abort(signal.reason)
  signal.addEventListener('abort', stop, { once: true })
  try {
    const response = await fetch(url, {
      headers: { accept: 'application/json' },
      redirect: 'manual',
      signal: attempt.signal,
    })
    if (!response.ok) {
      await response.body?.cancel()
      throw new Error(`the answer was ${response.status}`)
    }
    return JSON.parse(await readText(response, maxBytes))
  } catch (error) {
    throw describeFailure(error)
  } finally {
    clearTimeout(timer)
    signal.removeEventListener('abort', stop)
  }
}
