import type { Server } from 'node:http'
import type { Socket } from 'node:net'
import { systemClock } from '../../core/clock.ts'

interface DrainOptions {
  /** How long to accept new connections: load balancers need a moment to see that /readyz fails. */
  listenMs: number
  /** After this time, connections with an unanswered request are cut. */
  answerMs: number
}

/** A connection made just before the listener closed may still send its request. */
const FIRST_BYTE_MS = 250
/** If a turn of the event loop takes longer than this, a client may have started to connect meanwhile. */
const QUIET_TURN_MS = 0.2

/**
 * Takes a server out of service without losing a request: it accepts connections a while longer, then finishes the
 * requests in progress. Browsers open connections in advance and send nothing on them. Node counts those as busy; here
 * they do not delay the shutdown.
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
    await untilNoneWait(() => accepted, answerMs / 4)
    const closed = new Promise<void>((resolve) => server.close(() => resolve()))
    await within(Math.min(FIRST_BYTE_MS, answerMs / 2), closed)
    for (const socket of open) if (socket.bytesRead === 0) socket.destroy()
    await within(Math.max(0, cutAtMs - performance.now()), closed)
    server.closeAllConnections()
  }
}

/**
 * Resolves at a moment when no client waits to be accepted. Closing the listener resets waiting connections, and their
 * clients see a lost request. A connection refused after the close is not lost: clients retry it.
 */
async function untilNoneWait(accepted: () => number, maxWaitMs: number): Promise<void> {
  const deadlineMs = performance.now() + maxWaitMs
  for (;;) {
    const [before, sinceMs] = [accepted(), performance.now()]
    // One turn of the event loop accepts all clients that wait.
    await new Promise(setImmediate)
    const nowMs = performance.now()
    if ((accepted() === before && nowMs - sinceMs < QUIET_TURN_MS) || nowMs > deadlineMs) return
  }
}

/** Whether the work ended in time. Work that takes longer is not cancelled. */
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
