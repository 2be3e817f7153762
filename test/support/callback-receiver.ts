import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { until } from './until.ts'

export interface ReceivedCallback {
  path: string
  headers: IncomingHttpHeaders
  raw: Buffer
}

export interface CallbackReceiver {
  /** Carries a token, as our own callback URLs do. */
  url: string
  received: ReceivedCallback[]
  /** Requests whose body never arrived completely. */
  readonly broken: number
  /** The status of its answers; 200 by default. */
  status: number
  callbacksOf(runId: string): ReceivedCallback[]
  /** Resolves when a callback for this run has arrived. */
  callbackOf(runId: string): Promise<ReceivedCallback>
  close(): Promise<void>
}

/** The receiver at a callback URL: stores the exact bytes that the runtime posts. */
export async function startCallbackReceiver(): Promise<CallbackReceiver> {
  const received: ReceivedCallback[] = []
  let broken = 0
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('error', () => {
      broken += 1
    })
    request.on('end', () => {
      received.push({ path: request.url ?? '', headers: request.headers, raw: Buffer.concat(chunks) })
      response.writeHead(receiver.status).end()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  const callbacksOf = (runId: string) => received.filter(({ raw }) => raw.includes(`"run_id":"${runId}"`))
  const receiver: CallbackReceiver = {
    url: `http://127.0.0.1:${port}/webhooks/agent?token=s3cret`,
    received,
    get broken() {
      return broken
    },
    status: 200,
    callbacksOf,
    callbackOf: async (runId) => {
      await until(() => callbacksOf(runId).length > 0)
      const [first] = callbacksOf(runId)
      if (!first) throw new Error('It came and went')
      return first
    },
    close: async () => {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()))
      server.closeAllConnections()
      await closed
    },
  }
  return receiver
}
