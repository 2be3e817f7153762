import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../../http/paging.ts'
import { boundedText, nullableTextField, timeField } from '../../http/schemas.ts'
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
export const JobItem = Type.Object(
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
  output_check: oneOf(['failed'] as const, 'Jobs whose output does not fit the schema of their type.'),
  run_id: uuid('The id of a run of the job, also of an earlier one.'),
  thread_id: uuid('The id of a thread: the jobs of one conversation.'),
  trace_id: text('The trace id that the graph reported.'),
  retry_of: text('The id of the job that was repeated.'),
  retried: Type.Optional(Type.Boolean({ description: 'Whether the job was retried.' })),
  created_after: time('Jobs created later than this time.'),
  created_before: time('Jobs created earlier than this time.'),
  finished_after: time('Jobs that ended later than this time.'),
  finished_before: time('Jobs that ended earlier than this time.'),
}

export const fieldsQuery = oneOf(['summary'] as const, '`summary` leaves out `input` and `output`.')

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
      fields: fieldsQuery,
    },
    { additionalProperties: false },
  ),
  response: { 200: Type.Object(pageOf(JobItem).properties, { title: 'JobPage' }) },
}

const FailureGroups = Type.Object(
  {
    since: timeField('The jobs ended later than this time.'),
    data: Type.Array(
      Type.Object(
        {
          type: Type.String({ description: 'The job type.' }),
          error_code: Type.Unsafe<FailureCode>({ type: 'string', enum: [...FAILURE_CODES], description: 'The error.' }),
          count: Type.Integer({ description: 'How many jobs failed with it.' }),
          before: Type.Unsafe<number | null>({
            type: ['integer', 'null'],
            description:
              'How many did in the span of the same length before `since`; null if the 5,000 newest failed jobs do not ' +
              'reach back to its beginning.',
          }),
          last_at: timeField('When the last of them failed.'),
          message: nullableTextField('The message of the newest one.'),
        },
        { title: 'FailureGroup' },
      ),
      { description: 'Most frequent first.' },
    ),
    at_least: Type.Boolean({
      description:
        'True if the 5,000 newest failed jobs do not reach back to `since`: each `count` may be higher. A job that was created before these and failed only now is not counted.',
    }),
  },
  {
    title: 'FailureGroups',
    examples: [
      {
        since: '2026-01-31T12:00:00.000Z',
        data: [
          {
            type: 'report',
            error_code: 'run_failed',
            count: 12,
            before: 3,
            last_at: '2026-01-31T12:40:00.000Z',
            message: 'The model answered 500',
          },
        ],
        at_least: false,
      },
    ],
  },
)

export const listFailures = {
  operationId: 'listFailures',
  tags: ['Operations'],
  summary: 'Group failed jobs by type and error',
  description: 'The failed jobs that ended since a time, an hour ago by default. Reads the 5,000 newest failed jobs.',
  querystring: Type.Object(
    { since: time('The jobs that ended later than this time; at most 30 days ago.') },
    { additionalProperties: false },
  ),
  response: { 200: FailureGroups },
}

const EXAMPLE_COUNTS: Record<JobStatus, number> = {
  processing: 2,
  generating: 1,
  awaiting_input: 0,
  completed: 5_000,
  failed: 3,
  cancelled: 0,
}

const { status: _, ...countFilters } = jobFilters

export const readJobCounts = {
  operationId: 'countJobs',
  tags,
  summary: 'Count your jobs by status',
  description:
    'With `read:operations` or `admin:*`: the jobs of every user. The filters are those of the list. A count is exact ' +
    'unless `at_least` names its status: counting stops at 5,000 jobs of a status, and when 20,000 jobs were read for it.',
  querystring: Type.Object(countFilters, { additionalProperties: false }),
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
