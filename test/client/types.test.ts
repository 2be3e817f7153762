import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createClient } from '../../client/src/client.ts'
import type { ApiEvent, FailureCode, Job } from '../../client/src/types.ts'
import type { WebhookMessage } from '../../client/src/webhooks/index.ts'

/** As `project-api types` prints them. */
interface JobTypes {
  report: { input: { title: string; n: number }; output: { title: string; pages: number }; resume: never }
  agent: {
    input: { messages: { role: string; content: string }[] }
    output: string
    resume: boolean
    configurable: { language?: 'de' | 'en' }
  }
}

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
const isTrue = <T extends true>(value?: T) => value

const api = createClient<JobTypes>({ url: 'http://127.0.0.1:1' })

/** The compiler checks this function; it is never called. The check fails if a line after `@ts-expect-error` compiles. */
async function mistakes(): Promise<void> {
  // @ts-expect-error There is no such job type.
  await api.jobs.start('summary', {})
  // @ts-expect-error The title is missing.
  await api.jobs.start('report', { n: 3 })
  // @ts-expect-error The title is not a number.
  await api.jobs.start('report', { title: 3, n: 3 })
  const job = await api.jobs.start('agent', { messages: [] })
  // @ts-expect-error The answer is a boolean.
  await job.answer('yes')
  // @ts-expect-error There is no such language.
  await job.answer(true, { configurable: { language: 'fr' } })
  // @ts-expect-error There is no such key.
  await api.jobs.start('agent', { messages: [] }, { configurable: { caller: 'eve' } })
  // @ts-expect-error The type allows no configuration.
  await api.jobs.start('report', { title: 'x', n: 3 }, { configurable: {} })
  // @ts-expect-error The next turn takes the same input.
  await job.continue({ title: 'x', n: 1 })
  // @ts-expect-error There is no such status.
  api.jobs.list({ status: 'done' })
  const { data } = await api.jobs.list({ fields: 'summary' }).page()
  // @ts-expect-error A summary has no output.
  data[0]?.output
}

async function inferred(): Promise<void> {
  const job = await api.jobs.start('report', { title: 'Sales', n: 3 })
  isTrue<Equal<Awaited<ReturnType<typeof job.result>>, { title: string; pages: number }>>()
  const next = await job.continue({ title: 'Shorter', n: 1 })
  isTrue<Equal<Awaited<ReturnType<typeof next.result>>, { title: string; pages: number }>>()
  const agent = await api.jobs.start('agent', { messages: [] }, { configurable: { language: 'de' } })
  isTrue<Equal<NonNullable<typeof agent.data>['configurable'], { language?: 'de' | 'en' } | null>>()
  await createClient({ url: 'http://127.0.0.1:1' }).jobs.start('anything', 1, { configurable: { any: 'key' } })
  const untyped = await createClient({ url: 'http://127.0.0.1:1' }).jobs.start('anything', { goes: true })
  isTrue<Equal<Awaited<ReturnType<typeof untyped.result>>, unknown>>()
}

/** `status` narrows, and so does `type`. */
function describeJob(job: Job<JobTypes>): string {
  switch (job.status) {
    case 'completed':
      return job.type === 'report' ? `${job.output.pages} pages` : job.output
    case 'failed':
      return job.error.code satisfies FailureCode
    case 'awaiting_input':
      return job.interrupts.map(({ id }) => id ?? '').join()
    default:
      return job.error === null && job.interrupts === null ? job.status : 'never'
  }
}

/** A webhook is never a `reset`. */
function describeWebhook(event: WebhookMessage<JobTypes>): Exclude<ApiEvent['type'], 'reset'> {
  return event.type
}

function describeEvent(event: ApiEvent<JobTypes>): string {
  switch (event.type) {
    case 'job.failed':
      return `${event.data.status satisfies 'failed'} ${event.data.error?.code}`
    case 'project.created':
      return event.data.name
    case 'usage.threshold':
      return `${event.data.threshold satisfies 80 | 100} % of ${event.data.runs.limit ?? event.data.tokens.limit}`
    case 'reset':
      return 'reload'
    default:
      return 'job_id' in event.data ? `${event.data.type} ${event.data.thread_id.length}` : event.type
  }
}

test('job types, statuses and events are typed: the compiler checks this file', () => {
  assert.ok(
    [mistakes, inferred, describeJob, describeEvent, describeWebhook].every((checked) => typeof checked === 'function'),
  )
})
