import { Readable } from 'node:stream'
import { Type } from 'typebox'
import { auditOriginOf } from '../audit/audit-origin.ts'
import { recordAudit } from '../audit/record-audit.ts'
import type { Clock } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Database } from '../db/database.ts'
import type { App } from '../http/app-instance.ts'
import { callerOf, namedUser, scopes } from '../http/gate/access.ts'
import { pathParams } from '../http/schemas.ts'
import type { Reconciler } from '../jobs/worker/reconcile.ts'
import { toOperation } from '../operations/operation-routes.ts'
import type { OperationRunner } from '../operations/operation-runner.ts'
import { BulkOperation } from '../operations/operation-schema.ts'
import type { UserStates } from '../users/user-states.ts'
import { startErasure } from './erase-user.ts'
import { exportUser, isKnownUser, type RefreshJobs } from './export-user.ts'

const example = {
  sub: '8f14e45f-ceea-467f-a0e6-000000000001',
  profile: null,
  limits: { runs: null, tokens: null },
  usage: [],
  devices: [],
  projects: [],
  conversations: [],
  jobs: [],
  notifications: [],
  webhook_endpoints: [],
}

const exportOne = {
  operationId: 'exportUser',
  tags: ['Users'],
  summary: 'Export everything about a user',
  description:
    'One JSON document: profile, usage limits, usage, devices, the projects the user created, conversations, all jobs with their exact input and ' +
    'output and their notifications, the other notifications to the user, and the webhook endpoints the user created, without their secrets. It is sent while it is read. A connection that breaks means an incomplete document.',
  params: pathParams('sub', 'The identity provider’s id of the user.'),
  response: {
    200: Type.Object(
      {},
      { title: 'UserExport', description: 'The document.', additionalProperties: true, examples: [example] },
    ),
  },
}

const eraseOne = {
  operationId: 'eraseUser',
  tags: ['Users'],
  summary: 'Erase a user',
  description:
    'A background operation that cannot be stopped: profile, usage limits, devices, notifications, inputs, outputs, callback bodies, ' +
    'timelines, events and kept answers are erased, and unfinished jobs are cancelled. Jobs and projects stay without their ' +
    'creator, and usage stays as numbers. Until it is done the user is refused like a blocked one; afterwards the user may ' +
    'sign in again and starts empty. The threads of the user’s conversations are deleted at the runtime, which is asked for ' +
    'up to ten minutes; `failures` names each thread that stays, such as one that another client created. The erasure of an erased user can be repeated, for example to delete threads that stayed. While an erasure runs, another request answers with the same operation.',
  params: pathParams('sub', 'The identity provider’s id of the user.'),
  response: { 202: BulkOperation },
}

interface PeopleServices {
  db: Database
  clock: Clock
  ids: IdGenerator
  operationRunner: OperationRunner
  userStates: UserStates
  reconciler: Reconciler
}

/** The admin routes for all data of one user. */
export function peopleRoutes(app: App, services: PeopleServices): void {
  const { db, clock, ids, operationRunner, userStates, reconciler } = services
  const refresh: RefreshJobs = (jobs) => reconciler.refreshAll(jobs)
  const config = { access: scopes('admin:*'), refusals: { not_found: 'No such user' } }

  const exporting = { ...config, largeAnswer: 'page' as const }
  app.get('/v1/users/:sub/export', { config: exporting, schema: exportOne }, async (request, reply) => {
    const sub = namedUser(request)
    if (!(await isKnownUser(db, sub))) throw new ApiError('not_found', 'No such user')
    reply.type('application/json; charset=utf-8')
    if (request.method === 'HEAD') return reply.send(Readable.from([]))
    const exported = { by: auditOriginOf(request), action: 'user.exported', object: { kind: 'user', id: sub } } as const
    await db.transaction((tx) => recordAudit(tx, { ids, clock }, exported))
    return reply.send(Readable.from(exportUser(db, sub, refresh), { objectMode: false }))
  })

  const erasing = { ...config, refusals: { ...config.refusals, conflict: 'You cannot erase yourself' } }
  app.delete('/v1/users/:sub', { config: erasing, schema: eraseOne }, async (request, reply) => {
    const sub = namedUser(request)
    const caller = callerOf(request)
    if (caller.kind === 'user' && caller.sub === sub) throw new ApiError('conflict', 'You cannot erase yourself')
    const started = await startErasure(db, { ids, clock }, { sub, by: auditOriginOf(request) })
    if (!started) throw new ApiError('not_found', 'No such user')
    operationRunner.wake()
    // On this node the user is refused at once. If this read fails, the next periodic read corrects it.
    await userStates.load()
    return reply.code(202).header('location', `/v1/operations/${started.id}`).send(toOperation(started))
  })
}
