import type { IncomingMessage } from 'node:http'
import type { Clock } from '../../core/clock.ts'

const MAX_AWAITED_BYTES = 1024 * 1024
const MAX_WAIT_MS = 1_000

/**
 * If the connection closes after the answer, the answer waits for a small request body, for at most a second. If the
 * connection were closed while the client still sends, the client's system would discard the answer. Null: no need to wait.
 */
export function awaitLateBody(
  body: IncomingMessage,
  { willClose, clock }: { willClose: boolean; clock: Clock },
): Promise<void> | null {
  const isSmall = Number(body.headers['content-length']) <= MAX_AWAITED_BYTES
  return body.complete || body.destroyed || !willClose || !isSmall ? null : readToEnd(body, clock)
}

async function readToEnd(body: IncomingMessage, clock: Clock): Promise<void> {
  const over = new AbortController()
  const end = () => over.abort()
  body.once('end', end).once('close', end).resume()
  await clock.sleep(MAX_WAIT_MS, over.signal)
  body.off('end', end).off('close', end)
}
