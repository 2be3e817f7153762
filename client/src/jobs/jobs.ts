import { type CallOptions, type List, type ListOptions, listOf } from '../resources/pages.ts'
import type { ConfigurableOf, InputOf, Job, JobCounts, JobFilter, JobSummary, JobType, TypeName } from '../types.ts'
import { JobHandle } from './job-handle.ts'
import { type ClientContext, pathOf, requestJob, type StartOptions, startJob, type Work } from './job-requests.ts'

/** Starts, finds and lists jobs. */
export class Jobs<Types> {
  readonly #context: ClientContext

  constructor(context: ClientContext) {
    this.#context = context
  }

  /** Starts a job. It is durable once this resolves. */
  start<Name extends TypeName<Types>>(
    type: Name,
    input: InputOf<Types, Name>,
    options: StartOptions<ConfigurableOf<Types, Name>> = {},
  ) {
    return this.#start<Name>({ type, input }, options)
  }

  /** Follows a run that was started elsewhere. */
  follow<Name extends TypeName<Types>>(
    type: Name,
    run: { threadId: string; runId: string },
    options: StartOptions<never> = {},
  ) {
    return this.#start<Name>({ type, thread_id: run.threadId, run_id: run.runId }, options)
  }

  /** Reads a job. */
  async get<Name extends TypeName<Types> = TypeName<Types>>(
    id: string,
    { signal }: CallOptions = {},
  ): Promise<JobHandle<Types, Name>> {
    const job = await requestJob(this.#context, 'GET', pathOf(id), { signal })
    return new JobHandle<Types, Name>(this.#context, id, job)
  }

  /** The handle of a job without reading it. */
  handle<Name extends TypeName<Types> = TypeName<Types>>(id: string): JobHandle<Types, Name> {
    return new JobHandle<Types, Name>(this.#context, id)
  }

  /** Jobs, newest first. `fields: 'summary'` leaves out `input` and `output`. */
  list(options: JobFilter & ListOptions & { fields: 'summary' }): List<JobSummary<Types>>
  list(options?: JobFilter & ListOptions): List<Job<Types>>
  list(options: JobFilter & ListOptions & { fields?: 'summary' } = {}): List<Job<Types>> | List<JobSummary<Types>> {
    return listOf<Job<Types>>(this.#context.connection, '/jobs', options)
  }

  async counts({ signal }: CallOptions = {}): Promise<JobCounts> {
    return (await this.#context.connection.send<JobCounts>('GET', '/v1/jobs/counts', { signal })).body
  }

  /** The job types of the service and their outputs. */
  async types({ signal }: CallOptions = {}): Promise<JobType[]> {
    return (await this.#context.connection.send<{ data: JobType[] }>('GET', '/v1/job-types', { signal })).body.data
  }

  async #start<Name extends TypeName<Types>>(
    work: Work,
    options: StartOptions<unknown>,
  ): Promise<JobHandle<Types, Name>> {
    const job = await startJob(this.#context, work, options)
    return new JobHandle<Types, Name>(this.#context, job.id, job)
  }
}
