import { Agent, type IncomingHttpHeaders, request as send } from 'node:http'

const TIMEOUT_MS = 30_000
const MAX_SOCKETS = 512

export interface Call {
  method?: string
  /** Goes into `Authorization: Bearer`. */
  token?: string
  headers?: Record<string, string>
  /** Sent as JSON. */
  body?: unknown
  timeoutMs?: number
}

export interface CallResponse {
  status: number
  headers: IncomingHttpHeaders
  text: string
}

const agent = new Agent({ keepAlive: true, maxSockets: MAX_SOCKETS })

/** One HTTP request with a timeout: resolves with the whole response or rejects. No retries. */
export function call(url: string, options: Call = {}): Promise<CallResponse> {
  const { method = 'GET', token, body, timeoutMs = TIMEOUT_MS } = options
  const json = body === undefined ? undefined : JSON.stringify(body)
  const headers = {
    ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
    ...(json === undefined
      ? {}
      : { 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(json)) }),
    ...options.headers,
  }
  return new Promise((resolve, reject) => {
    const outgoing = send(url, { agent, method, headers })
    const timer = setTimeout(() => outgoing.destroy(new Error(`no response within ${timeoutMs} ms`)), timeoutMs)
    const fail = (error: Error) => {
      clearTimeout(timer)
      reject(error)
    }
    outgoing.on('error', fail)
    outgoing.on('response', (incoming) => {
      const chunks: Buffer[] = []
      incoming.on('data', (chunk: Buffer) => chunks.push(chunk))
      incoming.on('error', fail)
      incoming.on('close', () => fail(new Error('the response broke off')))
      incoming.on('end', () => {
        clearTimeout(timer)
        const { statusCode: status = 0, headers } = incoming
        resolve({ status, headers, text: Buffer.concat(chunks).toString('utf8') })
      })
    })
    outgoing.end(json)
  })
}
