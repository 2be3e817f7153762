import { faultsOfForm } from '../core/form.ts'
import { type Static, Type } from '../core/schema.ts'
import { isStorableText } from '../core/text.ts'

const notificationText = Type.Object(
  { title: Type.String({ minLength: 1, maxLength: 200 }), body: Type.String({ maxLength: 1000 }) },
  { additionalProperties: false },
)

const jobTypeFields = Type.Object(
  {
    description: Type.Optional(Type.String({ maxLength: 2000 })),
    assistant_id: Type.String({ minLength: 1, maxLength: 255 }),
    output_key: Type.Optional(Type.String({ minLength: 1, maxLength: 500 })),
    usage_key: Type.Optional(Type.String({ minLength: 1, maxLength: 500 })),
    may_pause: Type.Optional(Type.Boolean()),
    deadline_seconds: Type.Optional(Type.Integer({ minimum: 1, maximum: 30 * 86_400 })),
    notifications: Type.Optional(
      Type.Object(
        {
          completed: Type.Optional(notificationText),
          failed: Type.Optional(notificationText),
          cancelled: Type.Optional(notificationText),
          awaiting_input: Type.Optional(notificationText),
        },
        { additionalProperties: false },
      ),
    ),
    output_fields: Type.Optional(Type.Record(Type.String(), Type.String())),
  },
  { additionalProperties: false },
)

const jobTypesFile = Type.Object(
  {
    types: Type.Record(Type.String(), jobTypeFields),
    project_notifications: Type.Optional(
      Type.Object(
        {
          created: Type.Optional(notificationText),
          updated: Type.Optional(notificationText),
          deleted: Type.Optional(notificationText),
        },
        { additionalProperties: false },
      ),
    ),
  },
  { additionalProperties: false },
)

type NotificationText = Static<typeof notificationText>
export type NotifiedStatus = 'completed' | 'failed' | 'cancelled' | 'awaiting_input'

/** One kind of job: which graph runs it, where its output lies, and what its owner is told at its end. */
export interface JobType {
  name: string
  description: string | null
  assistantId: string
  /** A key or a JSON Pointer into the graph's values; null stands for the last assistant message. */
  outputKey: string | null
  usageKey: string | null
  /** Whether its graph can pause for a human: then a callback alone never proves that it is done. */
  mayPause: boolean
  deadlineMs: number
  notifications: Partial<Record<NotifiedStatus, NotificationText>>
  outputFields: Record<string, string>
}

export type JobTypes = ReadonlyMap<string, JobType>

export class JobTypesError extends Error {
  constructor(faults: readonly string[]) {
    super(`The job types are not in order:\n${faults.map((fault) => `  ${fault}`).join('\n')}`)
    this.name = 'JobTypesError'
  }
}

const NAME = /^[a-z][a-z0-9_-]{0,63}$/
const DEFAULT_DEADLINE_SECONDS = 3600

const DEFAULT_NOTIFICATIONS: JobType['notifications'] = {
  completed: { title: 'Your result is ready', body: 'Open the app to see it.' },
  failed: { title: 'Something went wrong', body: 'The job could not be finished.' },
  awaiting_input: { title: 'Your answer is needed', body: 'A job is waiting for you.' },
}

/** Reads the file's text, or names every fault in it. The type `agent` is always there, with its defaults. */
export function parseJobTypes(text: string): JobTypes {
  const document = parse(text)
  const faults = faultsOfForm(jobTypesFile, document)
  if (faults.length > 0) throw new JobTypesError(faults)
  const { types, project_notifications = {} } = document as Static<typeof jobTypesFile>
  faults.push(...faultsOfTexts('/project_notifications', project_notifications))
  faults.push(...Object.entries(types).flatMap(([name, fields]) => faultsOfType(name, fields)))
  if (faults.length > 0) throw new JobTypesError(faults)
  return toJobTypes(types)
}

/** What a project's creator is told of it, from the same file, once `parseJobTypes` has found it in order. */
export function parseProjectNotifications(
  text: string,
): Partial<Record<'created' | 'updated' | 'deleted', NotificationText>> {
  const { project_notifications } = parse(text) as Static<typeof jobTypesFile>
  return project_notifications ?? {}
}

/** What there is without a file. */
export const BUILT_IN_JOB_TYPES: JobTypes = toJobTypes({})

function faultsOfTexts(place: string, texts: Record<string, NotificationText>): string[] {
  return Object.entries(texts).flatMap(([name, text]) =>
    Object.entries(text)
      .filter(([, words]) => !isStorableText(words))
      .map(([part]) => `${place}/${name}/${part} must not contain NUL or unpaired surrogates`),
  )
}

function faultsOfType(name: string, fields: Static<typeof jobTypeFields>): string[] {
  const { output_key, usage_key, notifications = {} } = fields
  const place = `/types/${name}`
  const faults: string[] = []
  if (!NAME.test(name)) faults.push(`${place} must be named with lower-case letters, digits, - and _`)
  if (name !== 'agent' && output_key === undefined) faults.push(`${place} must have an output_key`)
  for (const [field, key] of Object.entries({ output_key, usage_key })) {
    if (key?.startsWith('/') && /~(?![01])/.test(key)) faults.push(`${place}/${field} must be a key or a JSON Pointer`)
  }
  faults.push(...faultsOfTexts(`${place}/notifications`, notifications))
  return faults
}

function toJobTypes(types: Record<string, Static<typeof jobTypeFields>>): JobTypes {
  const all = { agent: { assistant_id: 'agent', may_pause: true }, ...types }
  return new Map(Object.entries(all).map(([name, fields]) => [name, toJobType(name, fields)]))
}

function toJobType(name: string, fields: Static<typeof jobTypeFields>): JobType {
  return {
    name,
    description: fields.description ?? null,
    assistantId: fields.assistant_id,
    outputKey: fields.output_key ?? null,
    usageKey: fields.usage_key ?? null,
    // An agent's messages are there while it pauses, too.
    mayPause: fields.may_pause ?? name === 'agent',
    deadlineMs: (fields.deadline_seconds ?? DEFAULT_DEADLINE_SECONDS) * 1000,
    notifications: fields.notifications ?? DEFAULT_NOTIFICATIONS,
    outputFields: fields.output_fields ?? {},
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new JobTypesError([`it is not valid JSON: ${(error as Error).message}`])
  }
}
