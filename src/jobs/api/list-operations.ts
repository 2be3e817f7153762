import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../../http/paging.ts'
import { boundedText } from '../../http/schemas.ts'
import { FAILURE_CODES, type FailureCode, JOB_STATUSES, type JobStatus, VIAS, type Via } from '../job.ts'
import { Job, jobStatus } from './job-schema.ts'

const tags = ['Jobs']
const text = (description: string, maxLength = 255) => Type.Optional(boundedText({ maxLength, description }))
const oneOf = <Value extends string>(values: readonly Value[], description: string) =>
  Type.Optional(Type.Unsafe<Value>({ type: 'string', enum: [...values], description }))
const uuid = (description: string) => Type.Optional(Type.String({ format: 'uuid', description }))
const time = (description: string) => Type.Optional(Type.String({ format: 'date-time', description }))

const { input, output, ...always } = Job.properties

/** A job in a list: without input and output if the caller asked for summaries. */
const JobItem = Type.Object(
  { ...always, input: Type.Optional(input), output: Type.Optional(output) },
  { title: 'JobItem', description: 'A job. With `fields=summary` it has no `input` and no `output`.' },
)
export type JobItem = Static<typeof JobItem>

/** The filters of a list of jobs. */
export const jobFilters = {
  status: oneOf<JobStatus>(JOB_STATUSES, 'The job’s status.'),
  type: text('A job type.', 64),
  project: text('A project’s id.'),
  project_id: text('The same as `project`, by the field’s name.'),
  created_by: text('The owner; only with `read:operations` or `admin:*`.'),
  error_code: oneOf<FailureCode>(FAILURE_CODES, 'Why a failed job failed.'),
  settled_by: oneOf<Via>(VIAS, 'What revealed first that the run had ended.'),
  run_id: uuid('The id of a run of the job, also of an earlier one.'),
  thread_id: uuid('The id of a thread: the jobs of one conversation.'),
  trace_id: text('The trace id that the graph reported.'),
  retry_of: text('The id of the job that was repeated.'),
  created_after: time('Jobs created later than this time.'),
  created_before: time('Jobs created earlier than this time.'),
}

export const listJobs = {
  operationId: 'listJobs',
  tags,
  summary: 'List your jobs, newest first',
  description:
    'With `read:operations` or `admin:*`: the jobs of every user. The unfinished jobs of a page that were not checked in the last two seconds ' +
    'are brought up to date with the runtime, within one second for all of them. ' +
    'Filters can be combined. A page ends early when its jobs exceed 2 MB, or when 5,000 jobs were read for a rare ' +
    'combination of filters, and may even be empty then; `has_more` says whether there are more.',
  querystring: Type.Object(
    {
      ...pageQuery,
      ...jobFilters,
      fields: oneOf(['summary'] as const, '`summary` leaves out `input` and `output`.'),
    },
    { additionalProperties: false },
  ),
  response: { 200: Type.Object(pageOf(JobItem).properties, { title: 'JobPage' }) },
}

const EXAMPLE_COUNTS: Record<JobStatus, number> = {
  processing: 2,
  generating: 1,
  awaiting_input: 0,
  completed: 4_998,
  failed: 3,
  cancelled: 0,
}

export const readJobCounts = {
  operationId: 'countJobs',
  tags,
  summary: 'Count your jobs by status',
  description:
    'With `read:operations` or `admin:*`: the jobs of every user. Counting stops at 10,000 jobs of a status, and completed jobs are counted ' +
    'among the 5,000 newest jobs. `at_least` names the statuses where counting stopped.',
  response: {
    200: Type.Object(
      {
        counts: Type.Object(
          Object.fromEntries(
            JOB_STATUSES.map((status) => [status, Type.Integer({ description: `Jobs in status \`${status}\`.` })]),
          ) as Record<JobStatus, ReturnType<typeof Type.Integer>>,
          { description: 'How many jobs have each status.' },
        ),
        at_least: Type.Array(jobStatus, {
          description: 'The statuses that may have more jobs than their count.',
        }),
      },
      {
        title: 'JobCounts',
        examples: [
          {
            counts: EXAMPLE_COUNTS,
            at_least: ['completed'],
          },
        ],
      },
    ),
  },
}
