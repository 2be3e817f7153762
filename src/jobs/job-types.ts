import { type Static, Type } from 'typebox'
import type { JsonText } from '../core/json/json-text.ts'
import type { Wanted } from '../core/json/wanted.ts'
import { isJsonObject } from '../core/json.ts'
import { isStorableText } from '../core/text.ts'
import { neverShorter } from '../db/nodes/service-clock.ts'
import { faultsOfTexts, type NotificationText, notificationTextSchema } from '../push/notification-text.ts'
import type { StreamMode } from '../runtime/runtime-types.ts'
import { NOTIFIED_STATUSES, type NotifiedStatus } from './job.ts'
import { type OutputPlaces, wantedValues } from './output.ts'
import { faultsOfDocumentSchema } from './schemas/check-schema.ts'
import { faultsOfConfigurableSchema } from './schemas/configurable-schema.ts'
import { DocumentSchema, type SchemaJson } from './schemas/document-schema.ts'

/** What `GET /jobs/{id}/live` may show of a run, beside the names of its steps. */
export const LIVE_MODES = ['messages', 'custom'] as const
export type LiveMode = (typeof LIVE_MODES)[number]

/** The push notifications that a type may define: one for each of these statuses, and the reminder of an open question. */
const NOTIFICATIONS = [...NOTIFIED_STATUSES, 'reminder'] as const
type NotificationName = NotifiedStatus | 'reminder'

const MAX_ANSWER_SECONDS = 365 * 86_400

const optionalSchema = Type.Optional(Type.Unsafe<SchemaJson>({}))
const optionalText = Type.Optional(notificationTextSchema)

const jobTypeFields = Type.Object(
  {
    description: Type.Optional(Type.String({ maxLength: 2000 })),
    assistant_id: Type.String({ minLength: 1, maxLength: 255 }),
    output_key: Type.Optional(Type.String({ minLength: 1, maxLength: 500 })),
    usage_key: Type.Optional(Type.String({ minLength: 1, maxLength: 500 })),
    may_pause: Type.Optional(Type.Boolean()),
    deadline_seconds: Type.Optional(Type.Integer({ minimum: 1, maximum: 30 * 86_400 })),
    max_running: Type.Optional(Type.Integer({ minimum: 1, maximum: 100_000 })),
    max_running_per_owner: Type.Optional(Type.Integer({ minimum: 1, maximum: 100_000 })),
    answer_within_seconds: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_ANSWER_SECONDS })),
    remind_after_seconds: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_ANSWER_SECONDS })),
    link: Type.Optional(Type.String({ minLength: 1, maxLength: 500 })),
    live: Type.Optional(Type.Array(Type.Enum(LIVE_MODES), { uniqueItems: true })),
    notifications: Type.Optional(
      Type.Object(
        Object.fromEntries(NOTIFICATIONS.map((name) => [name, optionalText])) as Record<
          NotificationName,
          typeof optionalText
        >,
        { additionalProperties: false },
      ),
    ),
    output_fields: Type.Optional(Type.Record(Type.String(), Type.String())),
    input_schema: optionalSchema,
    output_schema: optionalSchema,
    resume_schema: optionalSchema,
    configurable_schema: optionalSchema,
  },
  { additionalProperties: false },
)

/** The part `types` of the job types file. */
export const jobTypesSchema = Type.Record(Type.String(), jobTypeFields)
type ConfiguredJobTypes = Static<typeof jobTypesSchema>

/** One kind of job: which graph runs it, where its output is, and which push notifications its owner gets. */
export interface JobType extends OutputPlaces {
  name: string
  description: string | null
  assistantId: string
  /** The parts of the graph's values that hold the output and the tokens. */
  wantedValues: Wanted
  /**
   * The graph can pause for a human. A `success` is then complete only if the run's state says so. False: a `success` with
   * the output is complete, independent of the state.
   */
  mayPause: boolean
  deadlineMs: number
  /** How many of its runs may be active at once, over all nodes; null: any number. Further jobs wait. */
  maxRunning: number | null
  /** The same for the runs of each owner. */
  maxRunningPerOwner: number | null
  /** How long its questions wait for an answer; null: for any time. */
  answerWithinMs: number | null
  /** After which time the owner is reminded of an open question; null: never. */
  remindAfterMs: number | null
  /** Where a client shows a job of this type; `{job_id}` and the like stand for its ids. Null: nowhere. */
  link: string | null
  /** The parts of a run that viewers see while it works. Empty: only its end. */
  live: readonly LiveMode[]
  notifications: Partial<Record<NotificationName, NotificationText>>
  outputFields: Record<string, string>
  /** The schemas of inputs, outputs and answers. Null: anything is allowed. */
  inputSchema: DocumentSchema | null
  outputSchema: DocumentSchema | null
  resumeSchema: DocumentSchema | null
  /** The schema of what clients configure for the graph. Null: nothing. */
  configurableSchema: DocumentSchema | null
}

export type JobTypes = ReadonlyMap<string, JobType>

const NAME = /^[a-z][a-z0-9_-]{0,63}$/
const DEFAULT_DEADLINE_SECONDS = 3600

const DEFAULT_NOTIFICATIONS: JobType['notifications'] = {
  completed: { title: 'Your result is ready', body: 'Open the app to see it.' },
  failed: { title: 'Something went wrong', body: 'The job could not be finished.' },
  awaiting_input: { title: 'Your answer is needed', body: 'A job is waiting for you.' },
}
/** A type that sets `remind_after_seconds` asks for this push, even if it defines other notifications only. */
const DEFAULT_REMINDER: NotificationText = { title: 'Your answer is still needed', body: 'A job is waiting for you.' }

const BUILT_IN_AGENT: Static<typeof jobTypeFields> = { assistant_id: 'agent', live: [...LIVE_MODES] }

/** The job types without a file: `agent` alone. */
export const BUILT_IN_JOB_TYPES: JobTypes = toJobTypes({})

/**
 * Finds names that cannot be shown in a fault, or that every object has (`constructor`). Call it before the schema check:
 * the schema's pattern skips names with line ends, so their fields would not be checked.
 */
export function faultsOfOddNames(types: unknown): string[] {
  if (!isJsonObject(types)) return []
  const odd = Object.keys(types).filter((name) => !/^[\x21-\x7e]{1,64}$/.test(name) || name in {})
  return odd.map((name) => `/types has a type named ${JSON.stringify(name.slice(0, 64))}, which cannot be a name`)
}

/** Checks that the schema cannot express: names, output keys, pointers, texts. Each fault names its place in the file. */
export function faultsOfJobTypes(types: ConfiguredJobTypes): string[] {
  return Object.entries(types).flatMap(([name, fields]) => faultsOfType(name, fields))
}

function faultsOfType(name: string, fields: Static<typeof jobTypeFields>): string[] {
  const { output_key, usage_key, notifications = {}, answer_within_seconds, remind_after_seconds } = fields
  const { input_schema, output_schema, resume_schema, configurable_schema } = fields
  const place = `/types/${name}`
  const faults: string[] = []
  if (!NAME.test(name)) faults.push(`${place} must be named with lower-case letters, digits, - and _`)
  if (name !== 'agent' && output_key === undefined) faults.push(`${place} must have an output_key`)
  for (const [field, key] of Object.entries({ output_key, usage_key })) {
    if (key?.startsWith('/') && /~(?![01])/.test(key)) faults.push(`${place}/${field} must be a key or a JSON Pointer`)
  }
  if (answer_within_seconds !== undefined && (remind_after_seconds ?? 0) >= answer_within_seconds) {
    faults.push(`${place}/remind_after_seconds must be less than answer_within_seconds`)
  }
  faults.push(...faultsOfTexts(`${place}/notifications`, notifications), ...faultsOfLink(`${place}/link`, fields.link))
  for (const [field, schema] of Object.entries({ input_schema, output_schema, resume_schema, configurable_schema })) {
    if (schema !== undefined) faults.push(...faultsOfDocumentSchema(`${place}/${field}`, schema))
  }
  if (configurable_schema !== undefined) {
    faults.push(...faultsOfConfigurableSchema(`${place}/configurable_schema`, configurable_schema))
  }
  return faults
}

const LINK_IDS = ['job_id', 'project_id', 'thread_id'] as const
/** A link of these runs code or reads files where it is opened. */
const UNSAFE_SCHEMES = ['javascript:', 'data:', 'vbscript:', 'blob:', 'file:']

/** A link is a URL of the web or of an app, whose host no id changes. */
function faultsOfLink(place: string, link: string | undefined): string[] {
  if (link === undefined) return []
  const unknown = [...link.matchAll(/\{([^{}]*)\}?|\}/g)].find(
    ([whole, name]) => whole !== `{${name}}` || !isLinkId(name),
  )
  if (unknown) return [`${place} may hold ${LINK_IDS.map((id) => `{${id}}`).join(', ')} and no other braces`]
  const url = URL.parse(link.replaceAll(/\{\w+\}/g, 'x'))
  const isSafe = url !== null && !UNSAFE_SCHEMES.includes(url.protocol) && isStorableText(link)
  if (!isSafe) return [`${place} must be a URL, such as https://app.example.com/jobs/{job_id}`]
  return /^[^/]*\/\/[^/?#]*\{/.test(link) ? [`${place} must not have an id in its host`] : []
}

function isLinkId(name: string | undefined): boolean {
  return LINK_IDS.some((id) => id === name)
}

/** Where a client shows this job. Null if its type has no link, or if the link needs a project and the job has none. */
export function linkOf(
  type: Pick<JobType, 'link'> | undefined,
  job: { id: string; project_id: string | null; thread_id: string },
): string | null {
  if (!type?.link || (job.project_id === null && type.link.includes('{project_id}'))) return null
  const ids: Record<string, string | null> = { job_id: job.id, project_id: job.project_id, thread_id: job.thread_id }
  return type.link.replaceAll(/\{(\w+)\}/g, (_whole, name: string) => encodeURIComponent(ids[name] ?? ''))
}

/** The type `agent` always exists, with defaults. */
export function toJobTypes(types: ConfiguredJobTypes): JobTypes {
  const all = { agent: BUILT_IN_AGENT, ...types }
  return new Map(Object.entries(all).map(([name, fields]) => [name, createJobType(name, fields)]))
}

function createJobType(name: string, fields: Static<typeof jobTypeFields>): JobType {
  const places = { outputKey: fields.output_key ?? null, usageKey: fields.usage_key ?? null }
  return {
    name,
    description: fields.description ?? null,
    assistantId: fields.assistant_id,
    ...places,
    wantedValues: wantedValues(places),
    // A graph may write its output and then pause, so an output alone does not prove that it is done.
    mayPause: fields.may_pause ?? true,
    deadlineMs: (fields.deadline_seconds ?? DEFAULT_DEADLINE_SECONDS) * 1000,
    maxRunning: fields.max_running ?? null,
    maxRunningPerOwner: fields.max_running_per_owner ?? null,
    answerWithinMs: toMs(fields.answer_within_seconds),
    remindAfterMs: toMs(fields.remind_after_seconds),
    link: fields.link ?? null,
    live: fields.live ?? (name === 'agent' ? LIVE_MODES : []),
    notifications: { reminder: DEFAULT_REMINDER, ...(fields.notifications ?? DEFAULT_NOTIFICATIONS) },
    outputFields: fields.output_fields ?? {},
    inputSchema: toSchema(fields.input_schema),
    outputSchema: toSchema(fields.output_schema),
    resumeSchema: toSchema(fields.resume_schema),
    configurableSchema: toSchema(fields.configurable_schema),
  }
}

/** The stream modes of the runtime for what viewers see. The steps come from the updates. */
export function streamModesOf({ live }: Pick<JobType, 'live'>): StreamMode[] {
  if (live.length === 0) return []
  return [...live.map((mode) => (mode === 'messages' ? ('messages-tuple' as const) : mode)), 'updates']
}

function toMs(seconds: number | undefined): number | null {
  return seconds === undefined ? null : seconds * 1000
}

function toSchema(json: SchemaJson | undefined): DocumentSchema | null {
  return json === undefined ? null : new DocumentSchema(json)
}

const MAX_CONFIGURABLE_BYTES = 16 * 1024

/** The first fault of what a client configures for the graph, after its place. Null if it is allowed. */
export function faultOfConfigurable(
  { name, configurableSchema }: JobType,
  configurable: JsonText | undefined,
  place: string,
): string | null {
  if (configurable === undefined) return null
  if (configurableSchema === null) return `${place} is not allowed: the type ${name} has no configurable_schema`
  if (Buffer.byteLength(configurable.text) > MAX_CONFIGURABLE_BYTES) return `${place} must not be larger than 16 KB`
  return configurableSchema.faultOf(configurable, place)
}

/** When a run that begins now must have ended. A step of the clock does not make it earlier. */
export function deadlineFrom(atMs: number, { deadlineMs }: Pick<JobType, 'deadlineMs'>): number {
  return atMs + neverShorter(deadlineMs)
}

/** When the owner is reminded of a question that is asked now, and when the job fails without an answer. */
export function questionTimes(
  atMs: number,
  type: Pick<JobType, 'answerWithinMs' | 'remindAfterMs'> | undefined,
): { remind_at: number | null; answer_by: number | null } {
  const after = (ms: number | null | undefined) => (ms == null ? null : atMs + neverShorter(ms))
  return { remind_at: after(type?.remindAfterMs), answer_by: after(type?.answerWithinMs) }
}

/** The type's name if it limits how many of its runs are active at once; null otherwise. */
export function limitedTypeOf(type: JobType | undefined): string | null {
  return type && (type.maxRunning ?? type.maxRunningPerOwner) !== null ? type.name : null
}
