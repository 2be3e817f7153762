import { type Static, Type } from 'typebox'
import { AUDIT_ACTOR_KINDS, type AuditActorKind } from '../audit/audit-actions.ts'
import { pageOf, pageQuery } from '../http/paging.ts'
import { boundedText, idempotencyHeader, nullableTimeField, pathParams, timeField } from '../http/schemas.ts'
import { jobFilters } from '../jobs/api/list-operations.ts'
import { callbackFilters } from '../jobs/callbacks/callback-schema.ts'
import { MAX_ITEMS } from './frozen-ids.ts'
import {
  BULK_ACTIONS,
  type BulkActionName,
  OPERATION_ACTIONS,
  OPERATION_STATES,
  type OperationAction,
  type OperationState,
} from './operation-store.ts'

export const MAX_SHOWN_FAILURES = 100

const tags = ['Operations']
const meaning =
  '`cancel`, `retry` and `check` do to each job what `POST /jobs/{id}/…` does; `replay` processes stored callbacks again'
const bulkAction = Type.Unsafe<BulkActionName>({
  title: 'BulkAction',
  type: 'string',
  enum: [...BULK_ACTIONS],
  description: `${meaning}.`,
})
const action = Type.Unsafe<OperationAction>({
  title: 'OperationAction',
  type: 'string',
  enum: [...OPERATION_ACTIONS],
  description:
    `${meaning}; \`erase\` erases a user, started by \`DELETE /v1/users/{sub}\`; \`recover\` sends events to a webhook ` +
    'endpoint again, started by `POST /v1/webhook-endpoints/{id}/recover`.',
})

const OperationFailure = Type.Object(
  {
    id: Type.String({
      description:
        'The id of the job or callback; for `erase`, of a thread that stays at the runtime, or the `sub` if the service cannot ' +
        'know all threads that stay.',
    }),
    error: Type.String({ description: 'Why it failed, in a sentence.' }),
  },
  {
    title: 'OperationFailure',
    examples: [{ id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc', error: 'The job type report is not configured any more' }],
  },
)

export const BulkOperation = Type.Object(
  {
    id: Type.String({ description: 'Begins with `opr_`.' }),
    action,
    state: Type.Unsafe<OperationState>({
      title: 'OperationState',
      type: 'string',
      enum: [...OPERATION_STATES],
      description:
        '`done`: every item was processed; some may have failed. `cancelled`: it was stopped before the end.',
    }),
    total: Type.Integer({
      description:
        'How many items it has. For `erase`: the jobs of the user, the user, and each thread that stays. For `recover`: the ' +
        'positions of the event log.',
    }),
    done: Type.Integer({ description: 'How many items are done.' }),
    failed: Type.Integer({ description: 'How many items failed.' }),
    failures: Type.Array(OperationFailure, {
      description:
        `The first ${MAX_SHOWN_FAILURES} items that failed. If \`failed\` is larger, there are more: ` +
        '`GET /v1/operations/{id}/failures` lists them all.',
    }),
    skipped: Type.Integer({
      description: 'How many items were left alone: jobs to retry that were retried already.',
    }),
    skips: Type.Array(
      Type.Object(
        {
          id: Type.String({ description: 'The id of the job.' }),
          reason: Type.String({ description: 'Why it was skipped, in a sentence.' }),
        },
        { title: 'OperationSkip' },
      ),
      { description: `The first ${MAX_SHOWN_FAILURES} items that were skipped.` },
    ),
    created_by: Type.String({
      description: 'Who started it: a `sub`, a service account’s id, or a user name on the machine.',
    }),
    created_by_kind: Type.Unsafe<AuditActorKind>({
      type: 'string',
      enum: [...AUDIT_ACTOR_KINDS],
      description: 'A user, a service account or the command line.',
    }),
    created_at: timeField('When it was started.'),
    finished_at: nullableTimeField('When it was done or stopped.'),
  },
  {
    title: 'Operation',
    examples: [
      {
        id: 'opr_01kq3v7m2x8n4r6t0w9y5z1abc',
        action: 'retry',
        state: 'running',
        total: 5000,
        done: 1230,
        failed: 1,
        failures: [{ id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc', error: 'The job type report is not configured any more' }],
        skipped: 0,
        skips: [],
        created_by: '8f14e45f-ceea-467f-a0e6-000000000001',
        created_by_kind: 'user',
        created_at: '2026-01-31T12:00:00.000Z',
        finished_at: null,
      },
    ],
  },
)
export type OperationFailure = Static<typeof OperationFailure>
export type BulkOperation = Static<typeof BulkOperation>

const dryRun = Type.Object(
  {
    action: bulkAction,
    total: Type.Integer({ description: 'How many items the operation would process.' }),
    retried: Type.Optional(
      Type.Integer({
        description:
          'For `retry` without `again`: how many further jobs it would leave alone, because they were retried already. Counting ' +
          'stops at 100,000.',
      }),
    ),
    dry_run: Type.Literal(true, { description: 'Nothing was started.' }),
  },
  { title: 'OperationDryRun', examples: [{ action: 'retry', total: 5000, retried: 12, dry_run: true }] },
)

export const startOperation = {
  operationId: 'startOperation',
  tags,
  summary: 'Run an action on many jobs or callbacks',
  description:
    `For the items of \`ids\`, or for all that fit \`filter\` now; at most ${MAX_ITEMS}, more is a 400 with their number. ` +
    'Of the jobs that fit a filter, `cancel` takes the unfinished ones, `retry` the ended ones and `check` those whose run ' +
    'may be active. The items are fixed when the operation starts. It runs in the background, also after a restart, and ' +
    'does no item twice. A retry leaves out the jobs of a filter that were retried already, and skips those among `ids` and ' +
    'those that are retried while it runs. `dry_run` only counts and answers 200.',
  headers: idempotencyHeader,
  body: Type.Object(
    {
      action: bulkAction,
      ids: Type.Optional(
        Type.Array(boundedText({ minLength: 1, maxLength: 64 }), {
          minItems: 1,
          maxItems: MAX_ITEMS,
          description: 'The ids of jobs, or of callbacks for `replay`.',
        }),
      ),
      filter: Type.Optional(
        Type.Object(
          { ...callbackFilters, ...jobFilters },
          {
            title: 'OperationFilter',
            additionalProperties: false,
            minProperties: 1,
            description: 'The filters of `GET /jobs`, or for `replay` those of `GET /v1/callbacks`.',
          },
        ),
      ),
      again: Type.Optional(
        Type.Boolean({
          description:
            'Only for `retry`: repeat also the jobs that were retried before the operation. Default: true with the filter ' +
            '`retried: true`, otherwise false. With the filter `retried`, the other value is refused.',
        }),
      ),
      dry_run: Type.Optional(Type.Boolean({ description: 'Count the items and start nothing.' })),
    },
    {
      title: 'OperationInput',
      additionalProperties: false,
      examples: [{ action: 'retry', filter: { status: 'failed', error_code: 'run_lost' } }],
    },
  ),
  response: { 200: dryRun, 202: BulkOperation },
}

export const getOperation = {
  operationId: 'getOperation',
  tags,
  summary: 'Get an operation and its progress',
  params: pathParams('id', 'The operation’s id.'),
  response: { 200: BulkOperation },
}

export const listOperationFailures = {
  operationId: 'listOperationFailures',
  tags,
  summary: 'List the items of an operation that failed',
  description: 'All of them, in the order in which they failed.',
  params: pathParams('id', 'The operation’s id.'),
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(OperationFailure) },
}

export const listOperations = {
  operationId: 'listOperations',
  tags,
  summary: 'List operations, newest first',
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(BulkOperation) },
}

export const cancelOperation = {
  operationId: 'cancelOperation',
  tags,
  summary: 'Stop an operation',
  description: 'Items that are done stay done. Stopping it again changes nothing. An erasure cannot be stopped.',
  params: pathParams('id', 'The operation’s id.'),
  response: { 200: BulkOperation },
}
