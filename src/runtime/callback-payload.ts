import { ApiError } from '../core/errors.ts'
import type { JsonPart } from '../core/json/json-part.ts'
import { type Wanted, WHOLE, wantAll, wantFields } from '../core/json/wanted.ts'
import { isUuid } from '../core/uuid.ts'
import { decodeBody, scanBody } from '../http/scan-body.ts'
import { idIn, readError, readTraces, WANTED_ERROR, WANTED_IDS, WANTED_TRACES } from './read-answers.ts'
import { withoutTokens } from './redact-tokens.ts'
import type { Traces } from './runtime-types.ts'

/** A completion callback, the same for every runtime. */
export interface CallbackPayload {
  threadId: string
  runId: string
  status: string
  /** Null if the payload has no values; that is different from empty values. */
  values: JsonPart | null
  error: string | null
  jobId: string | null
  /** The number of the job's run that the callback is about; null if its metadata does not say. */
  runSeq: number | null
  /** Which attempt to start the run it belongs to. */
  attempt: number
  traces: Traces
  /** The body as received, with this service's own token redacted. */
  body: string
}

const WANTED = wantAll(
  wantFields({
    ...WANTED_IDS,
    error: WANTED_ERROR,
    metadata: wantAll(wantFields({ job_id: WHOLE, run_seq: WHOLE, attempt: WHOLE }), WANTED_TRACES),
  }),
  WANTED_TRACES,
  wantFields({ values: WANTED_TRACES }),
)

/**
 * Parses JSON regardless of the content type, and finds the parts of `values` that the job type needs. An invalid body gets
 * a 400 that describes the fault.
 */
export async function parseCallback(
  raw: Buffer | string,
  wantedValues: Wanted = WHOLE,
  ownToken?: string,
): Promise<CallbackPayload> {
  const text = typeof raw === 'string' ? raw : decodeBody(raw)
  const { root } = await scanBody(text, wantAll(WANTED, wantFields({ values: wantedValues })))
  if (root.kind !== 'object') throw new ApiError('invalid_request', 'body must be an object')
  const values = root.at('values')?.kind === 'object' ? root.at('values') : undefined
  const metadata = root.at('metadata')
  const error = readError(root.at('error'))
  return {
    threadId: requireUuid(root, 'thread_id'),
    runId: requireUuid(root, 'run_id'),
    status: requireId(root, 'status'),
    values: values ?? null,
    error: error === null ? null : withoutTokens(error, ownToken),
    jobId: idIn(metadata, 'job_id'),
    runSeq: numberIn(metadata?.at('run_seq')),
    attempt: numberIn(metadata?.at('attempt')) ?? 1,
    traces: readTraces(root, metadata, values),
    body: withoutTokens(text, ownToken),
  }
}

/** The ids of runs and threads are stored in lower case. */
function requireUuid(root: JsonPart, name: string): string {
  requireField(root, name)
  const id = idIn(root, name)
  if (!isUuid(id)) throw new ApiError('invalid_request', `body/${name} must be a UUID`)
  return id.toLowerCase()
}

function requireField(root: JsonPart, name: string): void {
  const part = root.at(name)
  if (part === undefined || part.kind === 'null') {
    throw new ApiError('invalid_request', `body must have the field "${name}"`)
  }
}

function requireId(root: JsonPart, name: string): string {
  requireField(root, name)
  const id = idIn(root, name)
  if (id === null) throw new ApiError('invalid_request', `body/${name} must be a short string`)
  return id
}

function numberIn(part: JsonPart | undefined): number | null {
  return part?.kind === 'number' ? Number(part.text) : null
}
