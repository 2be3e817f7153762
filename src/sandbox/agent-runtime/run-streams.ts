import type { ServerResponse } from 'node:http'
import type { Clock } from '../../core/clock.ts'
import { isUuid } from '../../core/uuid.ts'
import type { Run } from './records.ts'
import { eventsOf, type PlannedStep } from './run-events.ts'
import type { RuntimeState } from './state.ts'

const STREAM_PATH = /^\/threads\/([^/]+)\/runs\/([^/]+)\/stream$/
export const STREAM_ENDPOINT = 'GET /threads/{t}/runs/{r}/stream'

/** The ids in the path of a request that joins the stream of a run. Null for every other request. */
export function readStreamPath(method: string, pathname: string): { threadId: string; runId: string } | null {
  const [, threadId, runId] = STREAM_PATH.exec(pathname) ?? []
  return method === 'GET' && isUuid(threadId) && isUuid(runId) ? { threadId, runId } : null
}

/** Streams the steps of a run over the time that it takes. A longer time per token makes the run take longer. */
export async function streamSteps(
  run: Run,
  work: { steps: readonly PlannedStep[]; runningMs: number; tokenMs: number; clock: Clock },
): Promise<void> {
  const { steps, runningMs, tokenMs, clock } = work
  const events = eventsOf(run, steps)
  const everyMs = Math.max(tokenMs, Math.floor(runningMs / events.length))
  const sinceMs = clock.now()
  for (const event of events) {
    if (run.events.length > 0) await clock.sleep(everyMs, run.stop.signal)
    if (run.stop.signal.aborted) return
    run.events.push(event)
    for (const notify of run.followers) notify()
  }
  await clock.sleep(Math.max(0, sinceMs + runningMs - clock.now()), run.stop.signal)
}

/** Decides after each event whether the connection breaks, or stays open without further events. */
interface StreamFaults {
  breaks: () => boolean
  freezes: () => boolean
}

/**
 * Sends the events of a run after the last one that the client has, and follows it to its end, as the real runtime does.
 * Without that id, or if the run was not created as resumable, only new events are sent.
 */
export function serveRunStream(
  response: ServerResponse,
  { state, threadId, runId }: { state: RuntimeState; threadId: string; runId: string },
  { lastEventId, breaks, freezes }: { lastEventId: string | undefined } & StreamFaults,
): void {
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' })
  response.flushHeaders()
  const run = state.thread(threadId)?.runs.find((one) => one.runId === runId)
  if (!run) {
    response.end('event: error\ndata: "Run not found"\n\n')
    return
  }
  let next = firstToSend(run, lastEventId)
  let isFrozen = false
  const send = () => {
    for (let event = run.events[next]; event && !response.destroyed && !isFrozen; event = run.events[next]) {
      const id = run.resumable ? `id: ${next}\n` : ''
      response.write(`event: ${event.event}\ndata: ${JSON.stringify(event.data)}\n${id}\n`)
      next += 1
      // One turn later, so that the event itself is still sent.
      if (breaks()) setImmediate(() => response.destroy())
      isFrozen = freezes()
    }
    if (run.endedAtMs !== null && !isFrozen) response.end()
  }
  // A simulated crash stops the run without an end, and breaks every connection.
  const stop = () => setImmediate(() => (run.endedAtMs === null ? response.destroy() : send()))
  run.followers.add(send)
  run.stop.signal.addEventListener('abort', stop, { once: true })
  response.once('close', () => {
    run.followers.delete(send)
    run.stop.signal.removeEventListener('abort', stop)
  })
  send()
}

function firstToSend({ events, resumable }: Run, lastEventId: string | undefined): number {
  const wanted = resumable && lastEventId !== undefined ? Number(lastEventId) + 1 : Number.NaN
  return wanted === 0 || (wanted > 0 && wanted < events.length) ? wanted : events.length
}
