import { NotProjectApi, parseJson } from '../errors.ts'
import type { components } from '../openapi.ts'
import type { CallOptions } from '../resources/pages.ts'
import { CannotStream, followStream } from '../streams/follow-stream.ts'
import { hasEnded, type JobStatus } from '../types.ts'
import { type ClientContext, pathOf } from './job-requests.ts'
import { waitForJob } from './wait-for-job.ts'

/** A message of a run, or the next piece of one. */
export type LiveMessage = components['schemas']['LiveMessage']

/** One piece of the live output of a run. To resume, continue after `cursor`. */
export type LivePart = { cursor: string } & (
  | { type: 'message'; message: LiveMessage }
  /** A progress report of the graph. */
  | { type: 'progress'; value: unknown }
  /** A node of the graph has finished. */
  | { type: 'step'; node: string; namespace?: string[] }
  /** The output so far is void or incomplete: clear it, and show only the output that follows. */
  | { type: 'reset' }
  /** The run has ended, or pauses with a question (`awaiting_input`). Nothing follows. */
  | { type: 'end'; status: JobStatus }
)

export interface LiveOptions extends CallOptions {
  /** Continue after this cursor. Without it, the run is shown from its beginning. */
  after?: string | null | undefined
}

/** The output of a run as it appears. Reconnects as often as needed. Ends without an error when the signal aborts. */
export async function* followLive(context: ClientContext, id: string, options: LiveOptions): AsyncGenerator<LivePart> {
  const { connection } = context
  const { signal, after } = options
  if (connection.streams) {
    try {
      for await (const { id: cursor, event, data } of followStream(connection, `${pathOf(id)}/live`, options)) {
        const part = toPart(event, parseJson(data), cursor)
        if (part) yield part
        if (part?.type === 'end') return
      }
      return
    } catch (error) {
      if (!(error instanceof CannotStream)) throw error
      connection.streams = false
    }
  }
  const until = ({ status }: { status: JobStatus }) => hasEnded(status) || status === 'awaiting_input'
  try {
    const { status } = await waitForJob(context, id, { until, signal })
    yield { type: 'end', cursor: `${runAfter(after)}-end`, status }
  } catch (error) {
    if (!signal?.aborted) throw error
  }
}

/** The number of the run that follows a cursor; a cursor begins with the number of its run. */
function runAfter(cursor: string | null | undefined): number {
  return cursor?.endsWith('-end') ? Number.parseInt(cursor, 10) + 1 : Number.parseInt(cursor ?? '1', 10)
}

/** Undefined for an event that only a later version of the service has. */
function toPart(event: string, data: unknown, cursor: string): LivePart | undefined {
  if (data === undefined) throw new NotProjectApi({ url: 'The live output', problem: 'it is not JSON' })
  switch (event) {
    case 'message':
      return { type: event, cursor, message: data as LiveMessage }
    case 'progress':
      return { type: event, cursor, value: data }
    case 'step':
      return { type: event, cursor, ...(data as { node: string; namespace?: string[] }) }
    case 'reset':
      return { type: event, cursor }
    case 'end':
      return { type: event, cursor, status: (data as { status: JobStatus }).status }
    default:
      return undefined
  }
}
