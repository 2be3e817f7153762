import type { IncomingMessage } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import type { App } from '../app-instance.ts'

const MAX_AWAITED_BYTES = 1024 * 1024
const MAX_WAIT_MS = 1_000

/**
 * If the client asked to close the connection after the answer, the answer waits for a small request body, for at most a
 * second. If the connection were closed while the client still sends, the client's system would discard the answer.
 */
export function readLateBodies(app: App, { clock }: { clock: Clock }): void {
  app.addHook('onSend', (request, reply, payload, done) => {
    const { raw, headers } = request
    const isSmall = Number(headers['content-length']) <= MAX_AWAITED_BYTES
    if (raw.complete || raw.destroyed || reply.raw.shouldKeepAlive || !isSmall) return done(null, payload)
    void readToEnd(raw, clock).then(() => done(null, payload))
  })
}

async function readToEnd(body: IncomingMessage, clock: Clock): Promise<void> {
  const over = new AbortController()
  const end = () => over.abort()
  body.once('end', end).once('close', end).resume()
  await clock.sleep(MAX_WAIT_MS, over.signal)
  body.off('end', end).off('close', end)
}
