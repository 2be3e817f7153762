import type { components, operations } from './openapi.ts'

type Schemas = components['schemas']

/** The input and output of one job type. `project-api types` prints one entry for each type of a deployment. */
export interface JobTypeShape {
  input: unknown
  output: unknown
  resume?: unknown
  /** Absent: the type allows no configuration. */
  configurable?: unknown
}

/** Any map of job types: an interface printed by `project-api types` fits as well as a type written by hand. */
export type JobTypeMap<Types> = { [Name in keyof Types]: JobTypeShape }

/** The job types of a client that was created without its own. */
export interface AnyJobTypes {
  [name: string]: { input: unknown; output: unknown; resume: unknown; configurable: Record<string, unknown> }
}

export type TypeName<Types> = keyof Types & string
export type InputOf<Types, Name extends keyof Types> = Types[Name] extends { input: infer Input } ? Input : unknown
export type OutputOf<Types, Name extends keyof Types> = Types[Name] extends { output: infer Output } ? Output : unknown
export type AnswerOf<Types, Name extends keyof Types> = Types[Name] extends { resume: infer Answer } ? Answer : unknown

/** What a client may configure for the graph of this job type. */
export type ConfigurableOf<Types, Name extends keyof Types> = Types[Name] extends { configurable: infer Configurable }
  ? Configurable
  : never

export type JobStatus = Schemas['JobStatus']
export type JobFailure = Schemas['JobError']
export type FailureCode = Schemas['JobErrorCode']

/** A question of the graph. `value` is the value that the graph passed to `interrupt()`. */
export interface Interrupt {
  id?: string
  value?: unknown
  [field: string]: unknown
}

type Always = Omit<Schemas['Job'], 'type' | 'status' | 'input' | 'output' | 'error' | 'interrupts' | 'configurable'>

/** Whether a job in this status has ended. A status without a row does not compile: `result()` would wait for ever. */
const HAS_ENDED: Record<JobStatus, boolean> = {
  processing: false,
  generating: false,
  awaiting_input: false,
  completed: true,
  failed: true,
  cancelled: true,
}

export function hasEnded(status: JobStatus): boolean {
  return HAS_ENDED[status]
}

/** The fields that each status decides. */
interface StatusFields<Output> {
  processing: { output: null; error: null; interrupts: null }
  generating: { output: null; error: null; interrupts: null }
  awaiting_input: { output: null; error: null; interrupts: Interrupt[] }
  completed: { output: Output; error: null; interrupts: null }
  failed: { output: null; error: JobFailure; interrupts: null }
  cancelled: { output: null; error: null; interrupts: null }
}

type State<Output> = { [Status in JobStatus]: { status: Status } & StatusFields<Output>[Status] }[JobStatus]

/** A job as the service returns it. `status` decides which of `output`, `error` and `interrupts` is present. */
export type Job<Types = AnyJobTypes, Name extends TypeName<Types> = TypeName<Types>> = Name extends unknown
  ? Always & {
      type: Name
      input: InputOf<Types, Name> | null
      configurable: ConfigurableOf<Types, Name> | null
    } & State<OutputOf<Types, Name>>
  : never

/** A job in a list with `fields: 'summary'`. */
export type JobSummary<Types = AnyJobTypes> = Omit<Always, never> & { type: TypeName<Types>; status: JobStatus } & Pick<
    Schemas['Job'],
    'error'
  >

/** Questions of a turn that are closed, with their answers. */
export type Pause = Schemas['Pause']

/** A job of a conversation, with its earlier questions. */
export type Turn<Types = AnyJobTypes> = Job<Types> & Pick<Schemas['Turn'], 'run' | 'pauses'>
export type ConversationItem = Schemas['ConversationItem']

/** A conversation with some of its turns, newest first. */
export type Conversation<Types = AnyJobTypes> = Omit<Schemas['Conversation'], 'data'> & { data: Turn<Types>[] }

export type JobFilter = Omit<NonNullable<operations['listJobs']['parameters']['query']>, 'cursor' | 'fields'>
export type JobCounts = Schemas['JobCounts']
export type JobType = Schemas['JobType']
export type TimelineEntry = Schemas['TimelineEntry']
export type Project = Schemas['Project']
export type ProjectInput = Schemas['ProjectInput']
export type ProjectChange = Schemas['ProjectChange']
export type User = Schemas['User']
export type UserChange = Schemas['UserChange']
export type Device = Schemas['Device']
export type DeviceInput = Schemas['DeviceInput']
export type Usage = Schemas['Usage']
export type UsageLimits = Schemas['UsageLimits']
export type WebhookEndpoint = Schemas['WebhookEndpoint']
export type WebhookEndpointInput = Schemas['WebhookEndpointInput']
export type WebhookEndpointWithSecret = Schemas['WebhookEndpointWithSecret']
export type WebhookDelivery = Schemas['WebhookDelivery']

interface EventOf<Type, Data> {
  /** The cursor to continue after. Store it to resume after a page load. */
  id: string
  type: Type
  created_at: string
  data: Data
}

interface JobEventData<Types, Status> {
  job_id: string
  type: TypeName<Types>
  status: Status
  project_id: string | null
  thread_id: string
  error: JobFailure | null
  settled_by: Schemas['Job']['settled_by']
  /** Where a client shows the job: the `link` of its type. */
  link: string | null
}

/** The events about a job, by the status that they report. */
interface StatusEvents {
  processing: 'job.created' | 'job.updated'
  generating: 'job.created' | 'job.updated'
  awaiting_input: 'job.awaiting_input' | 'job.reminder' | 'job.updated'
  completed: 'job.completed'
  failed: 'job.failed'
  cancelled: 'job.cancelled'
}

export type JobEvent<Types = AnyJobTypes> = {
  [Status in JobStatus]: EventOf<StatusEvents[Status], JobEventData<Types, Status>>
}[JobStatus]

export type ProjectEvent = EventOf<
  'project.created' | 'project.updated' | 'project.deleted',
  { project_id: string; name: string }
>

/** The caller's usage of this month has reached a threshold of one of its limits. */
export type UsageEvent = EventOf<'usage.threshold', Schemas['UsageEventData']>

/** A webhook endpoint was disabled, or an admin asked for a test of one. Only admins get it. */
export type WebhookEvent = EventOf<'webhook.disabled' | 'webhook.test', Schemas['WebhookEventData']>

/** Some events are missing: reload your data. The stream continues by itself. */
export type ResetEvent = EventOf<'reset', Record<string, never>>

export type ApiEvent<Types = AnyJobTypes> = JobEvent<Types> | ProjectEvent | UsageEvent | WebhookEvent | ResetEvent
