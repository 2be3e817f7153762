import type { Clock } from './clock.ts'

interface ExchangeOptions {
  fetch: typeof fetch
  clock: Clock
  url: string
  method?: 'GET' | 'POST' | 'DELETE'
  headers?: Record<string, string>
  body?: string
  timeoutMs: number
  maxBytes: number
  signal?: AbortSignal
}

export interface HttpAnswer {
  status: number
  headers: Headers
  text: string
}

/** A response arrived, but it is too large or not UTF-8. A retry would not help. */
export class UnreadableAnswer extends Error {
  readonly status: number
  readonly headers: Headers

  constructor(message: string, { status, headers }: Response) {
    super(message)
    this.name = 'UnreadableAnswer'
    this.status = status
    this.headers = headers
  }
}

/** Without a reason, `abort` makes an exception with a stack trace, which costs more than the timer. */
const ANSWERED = 'answered'

/**
 * Sends one request and resolves with the whole response, or rejects with the reason. The timeout covers headers and body,
 * the body is bounded, and redirects are not followed.
 */
export async function exchange(options: ExchangeOptions): Promise<HttpAnswer> {
  const { fetch, clock, url, method = 'GET', headers = {}, body, timeoutMs, maxBytes, signal } = options
  const attempt = new AbortController()
  const over = new AbortController()
  const stop = () => attempt.abort(signal?.reason)
  if (signal?.aborted) stop()
  signal?.addEventListener('abort', stop, { once: true })
  void clock.sleep(timeoutMs, over.signal).then(() => {
    if (!over.signal.aborted) attempt.abort(new Error(`no answer within ${timeoutMs} ms`))
  })
  try {
    const response = await fetch(url, {
      method,
      headers: { accept: 'application/json', ...headers },
      ...(body === undefined ? {} : { body }),
      redirect: 'manual',
      signal: attempt.signal,
    })
    return { status: response.status, headers: response.headers, text: await readText(response, maxBytes) }
  } catch (error) {
    throw describeFailure(attempt.signal.aborted ? attempt.signal.reason : error)
  } finally {
    over.abort(ANSWERED)
    signal?.removeEventListener('abort', stop)
  }
}

/** Counts the received bytes after decompression: a declared length is not trusted. */
async function readText(response: Response, maxBytes: number): Promise<string> {
  const decoder = new TextDecoder('utf-8', { fatal: true })
  const decode = (chunk?: Uint8Array) => {
    try {
      return decoder.decode(chunk, { stream: chunk !== undefined })
    } catch {
      throw new UnreadableAnswer('the answer is not UTF-8', response)
    }
  }
  let text = ''
  let bytes = 0
  for await (const chunk of response.body ?? []) {
    bytes += chunk.byteLength
    if (bytes > maxBytes) throw new UnreadableAnswer(`the answer is over ${maxBytes} bytes`, response)
    text += decode(chunk)
  }
  return text + decode()
}

/**
 * Whether the request failed before there was a connection: the server got nothing of it. The code alone does not tell: a
 * connection may become unreachable later, too.
 */
export function hadNoConnection(error: unknown): boolean {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    const { code, syscall } = cause as NodeJS.ErrnoException
    if (code === 'UND_ERR_CONNECT_TIMEOUT' || syscall === 'connect' || syscall === 'getaddrinfo') return true
    // One error for each address of the server.
    if (cause instanceof AggregateError && cause.errors.length > 0) return cause.errors.every(hadNoConnection)
  }
  return false
}

/** The message `fetch failed` is not useful: the socket's error is in the cause. */
function describeFailure(error: unknown): Error {
  if (!(error instanceof Error)) return new Error(String(error))
  if (!(error.cause instanceof Error)) return error
  const reason = error.cause.message || (error.cause as NodeJS.ErrnoException).code
  return new Error(`${error.message}: ${reason}`, { cause: error })
}
