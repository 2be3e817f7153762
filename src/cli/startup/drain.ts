import type { Server } from 'node:http'
import type { Socket } from 'node:net'
import { systemClock } from '../../core/clock.ts'

export interface DrainOptions {
  /** When to stop taking connections: load balancers need a moment to see /readyz. */
  listenMs: number
  /** When to cut what is still unanswered. */
  answerMs: number
}

/** A connection made just before the listener closed may still bring its request. */
const FIRST_BYTE_MS = 250
/** A turn of the event loop that took longer may have kept somebody waiting. */
const QUIET_TURN_MS = 0.2

/**
 * Takes a server out of service without losing a request: it listens a while longer, then answers what is under way.
 * Connections that never brought a request, as browsers open in advance, count as busy with the server itself; here
 * they hold nothing up.
 */
export function createDrain(server: Server): (options: DrainOptions) => Promise<void> {
  const open = new Set<Socket>()
  let accepted = 0
  server.on('connection', (socket: Socket) => {
    accepted += 1
    open.add(socket)
    socket.once('close', () => open.delete(socket))
  })
  return async ({ listenMs, answerMs }) => {
    if (listenMs > 0) await systemClock.sleep(listenMs)
    const cutAtMs = performance.now() + answerMs
    await untilLull(() => accepted, answerMs / 4)
    const closed = new Promise<void>((resolve) => server.close(() => resolve()))
    await within(Math.min(FIRST_BYTE_MS, answerMs / 2), closed)
    for (const socket of open) if (socket.bytesRead === 0) socket.destroy()
    await within(Math.max(0, cutAtMs - performance.now()), closed)
    server.closeAllConnections()
  }
}

/**
 * Resolves in a moment in which nobody waits to be accepted: the system resets those who do when a listener closes, and
 * to a client that is a request lost, where one refused right after is not.
 */
async function untilLull(accepted: () => number, patienceMs: number): Promise<void> {
  const deadlineMs = performance.now() + patienceMs
  for (;;) {
    const [before, sinceMs] = [accepted(), performance.now()]
    // One turn of the event loop, in which whoever waits is accepted.
    await new Promise(setImmediate)
    const nowMs = performance.now()
    if ((accepted() === before && nowMs - sinceMs < QUIET_TURN_MS) || nowMs > deadlineMs) return
  }
}

/** Whether the work was done in time; it goes on all the same. */
export async function within(ms: number, work: Promise<void>): Promise<boolean> {
  const over = new AbortController()
  const done = work.then(() => true)
  const late = systemClock.sleep(ms, over.signal).then(() => false)
  try {
    return await Promise.race([done, late])
  } finally {
    over.abort()
  }
}
