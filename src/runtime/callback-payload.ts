import { ApiError } from '../core/errors.ts'
import { isJsonObject, isJsonTooDeep, type JsonObject, MAX_JSON_DEPTH, parseForeignJson } from '../core/json.ts'
import { isId, readError, readTraces, withoutTokens } from './read-answers.ts'
import type { Traces } from './runtime-types.ts'

/** A completion callback, the same for every runtime. */
export interface CallbackPayload {
  threadId: string
  runId: string
  status: string
  /** Null when the payload has none, which is not the same as empty. */
  values: JsonObject | null
  error: string | null
  jobId: string | null
  traces: Traces
  /** The body as received, with this service's own token redacted. */
  body: string
}

/** Reads JSON whatever the content type says. A fault is answered with 400 and its description. */
export function parseCallback(raw: Buffer): CallbackPayload {
  const text = decode(raw)
  if (isJsonTooDeep(text)) {
    throw new ApiError('invalid_request', `body must not be nested deeper than ${MAX_JSON_DEPTH} levels`)
  }
  const payload = parse(text)
  const { thread_id, run_id, status } = payload
  for (const [name, value] of Object.entries({ thread_id, run_id, status })) {
    if (value === undefined || value === null)
      throw new ApiError('invalid_request', `body must have the field "${name}"`)
    if (!isId(value)) throw new ApiError('invalid_request', `body/${name} must be a short string`)
  }
  const metadata = isJsonObject(payload.metadata) ? payload.metadata : {}
  const values = isJsonObject(payload.values) ? payload.values : null
  return {
    threadId: String(thread_id),
    runId: String(run_id),
    status: String(status),
    values,
    error: readError(payload.error),
    jobId: isId(metadata.job_id) ? metadata.job_id : null,
    traces: readTraces(payload, metadata, values ?? undefined),
    body: withoutTokens(text),
  }
}

function decode(raw: Buffer): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(raw)
  } catch (cause) {
    throw new ApiError('invalid_request', 'body is not valid UTF-8', { cause })
  }
}

function parse(text: string): JsonObject {
  let value: unknown
  try {
    value = parseForeignJson(text)
  } catch (cause) {
    throw new ApiError('invalid_request', 'body is not valid JSON', { cause })
  }
  if (!isJsonObject(value)) throw new ApiError('invalid_request', 'body must be an object')
  return value
}
