import type { IncomingMessage } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import type { App } from '../app-instance.ts'

const MAX_IGNORED_BYTES = 1024 * 1024
const MAX_WAIT_MS = 1_000

/**
 * An answer that closes its connection waits for the rest of the request body, within limits. If the connection were
 * closed while the client still sends, the client's system would discard the answer.
 */
export function readLateBodies(app: App, { clock }: { clock: Clock }): void {
  app.addHook('onSend', (request, reply, payload, done) => {
    const willClose = !reply.raw.shouldKeepAlive || reply.getHeader('connection') === 'close'
    const { complete, destroyed } = request.raw
    if (complete || destroyed || !willClose) return done(null, payload)
    void readRest(request.raw, clock).then(() => done(null, payload))
  })
}

async function readRest(body: IncomingMessage, clock: Clock): Promise<void> {
  const over = new AbortController()
  const end = () => over.abort()
  let bytes = 0
  const count = (chunk: Buffer) => {
    bytes += chunk.length
    if (bytes > MAX_IGNORED_BYTES) end()
  }
  body.on('data', count).once('end', end).once('close', end).resume()
  await clock.sleep(MAX_WAIT_MS, over.signal)
  body.off('data', count).off('end', end).off('close', end)
}
