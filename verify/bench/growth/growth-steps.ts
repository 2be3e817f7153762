import { type AuditFilter, findAuditPage } from '../../../src/audit/audit-store.ts'
import { JsonText } from '../../../src/core/json/json-text.ts'
import type { Database } from '../../../src/db/database.ts'
import { readEvents, trimEvents } from '../../../src/events/event-store.ts'
import { type CallbackFilter, findCallbackPage } from '../../../src/jobs/callbacks/callback-list-store.ts'
import { countDueChecks } from '../../../src/jobs/check-store.ts'
import type { JobServices } from '../../../src/jobs/job-services.ts'
import { findJob } from '../../../src/jobs/job-store.ts'
import type { JobType } from '../../../src/jobs/job-types.ts'
import type { JobFilter } from '../../../src/jobs/lists/job-filter.ts'
import { countJobs, findJobPage } from '../../../src/jobs/lists/list-store.ts'
import { endedBefore, trimCallbacks, trimTimeline } from '../../../src/jobs/retention/history-store.ts'
import { findUnfinished } from '../../../src/jobs/uncommon-jobs.ts'
import { findNotificationPage } from '../../../src/push/notification-store.ts'
import { findBacklog } from '../../../src/push/outbox/delivery-list-store.ts'
import { type DeliveryFilter, findDeliveryPage } from '../../../src/push/outbox/delivery-page.ts'
import { trimNotifications } from '../../../src/push/trim-notifications.ts'
import { parseCallback } from '../../../src/runtime/callback-payload.ts'
import { findCounts, STATS_WINDOWS } from '../../../src/stats/stats-store.ts'
import { findUserPage, searchUsers } from '../../../src/users/user-store.ts'
import { JOBS_PER_OWNER, jobIdOf, runIdOf, threadIdOf, UNFINISHED } from './seed-history.ts'

export interface GrowthWorld {
  db: Database
  services: JobServices
  type: JobType
  jobs: number
}

/** One step of the service. `round` counts up, so that each round works on other rows. */
export type GrowthStep = (world: GrowthWorld, round: number) => Promise<unknown>

const FOREVER_MS = 8e12

function list(filterOf: (n: number) => JobFilter): GrowthStep {
  return ({ db, jobs }, round) =>
    findJobPage(db, { filter: filterOf(endedAt(jobs, round)), summary: false }, { limit: 20, after: null })
}

const FIRST = { limit: 20, after: null }

function callbacks(filterOf: (n: number) => CallbackFilter): GrowthStep {
  return ({ db, jobs }, round) => findCallbackPage(db, { filter: filterOf(endedAt(jobs, round)), bodies: false }, FIRST)
}

function deliveries(filterOf: (n: number) => DeliveryFilter): GrowthStep {
  return ({ db, jobs }, round) => findDeliveryPage(db, filterOf(endedAt(jobs, round)), FIRST)
}

function audit(filterOf: (n: number) => AuditFilter): GrowthStep {
  return ({ db, jobs }, round) => findAuditPage(db, filterOf(endedAt(jobs, round)), FIRST)
}

/** What `GET /v1/stats` reads. */
const stats: GrowthStep = ({ db }) => {
  const { bucketMs, spanMs } = STATS_WINDOWS['7d']
  const nowMs = Date.now()
  return Promise.all([
    findCounts(db, { bucketMs, fromMs: nowMs - spanMs }),
    findUnfinished(db, nowMs),
    countDueChecks(db, nowMs),
    findBacklog(db),
  ])
}

/** The number of an ended job, another one in each round. */
const endedAt = (jobs: number, round: number) => (round * 101) % (jobs - UNFINISHED)
const ownerAt = (n: number) => `owner-${Math.floor(n / JOBS_PER_OWNER)}`
/** One of the last owners. No other name begins with theirs, so that a search finds one at any size. */
const lastOwnerAt = (jobs: number, round: number) => ownerAt(jobs - UNFINISHED - 1 - endedAt(jobs, round))

/** Every filter of a list, and all other operations of the service that could slow down as the database grows. */
export const GROWTH_STEPS: Readonly<Record<string, GrowthStep>> = {
  read: ({ db, jobs }, round) => findJob(db, jobIdOf((round * 37) % jobs)),
  list: list(() => ({})),
  'list-created': list(() => ({ createdBeforeMs: FOREVER_MS })),
  'list-owner': list((n) => ({ createdBy: ownerAt(n) })),
  'list-status': list(() => ({ status: 'failed' })),
  'list-owner-status': list((n) => ({ createdBy: ownerAt(n), status: 'failed' })),
  'list-type': list(() => ({ type: 'rare' })),
  'list-project': list(() => ({ projectId: 'prj_rare' })),
  'list-owner-project': list((n) => ({ createdBy: ownerAt(n), projectId: 'prj_large' })),
  'list-error': list(() => ({ errorCode: 'run_failed' })),
  'list-settled-by': list(() => ({ settledBy: 'sweep' })),
  'list-thread': list((n) => ({ threadId: threadIdOf(n) })),
  'list-run': list((n) => ({ runId: runIdOf(n) })),
  'list-trace': list((n) => ({ traceId: `trace-${n}` })),
  'list-retry-of': list((n) => ({ retryOf: jobIdOf(n) })),
  'counts-of-owner': ({ db, jobs }, round) => countJobs(db, { createdBy: ownerAt(endedAt(jobs, round)) }),
  stats,
  callbacks: callbacks(() => ({})),
  'callbacks-outcome': callbacks(() => ({ outcome: 'stale' })),
  'callbacks-type': callbacks(() => ({ type: 'rare' })),
  'callbacks-job': callbacks((n) => ({ jobId: jobIdOf(n) })),
  notifications: ({ db }) => findNotificationPage(db, FIRST),
  deliveries: deliveries(() => ({})),
  'deliveries-state': deliveries(() => ({ state: 'failed' })),
  'deliveries-user': deliveries((n) => ({ user: ownerAt(n) })),
  'deliveries-job': deliveries((n) => ({ job: jobIdOf(n) })),
  audit: audit(() => ({})),
  'audit-actor': audit(() => ({ actor: 'rare' })),
  'audit-action': audit(() => ({ action: 'user.blocked' })),
  'audit-object': audit((n) => ({ object: jobIdOf(n) })),
  people: ({ db }) => findUserPage(db, FIRST),
  'people-by-sub': ({ db, jobs }, round) => searchUsers(db, { ...FIRST, text: lastOwnerAt(jobs, round) }),
  'people-by-email': ({ db, jobs }, round) =>
    searchUsers(db, { ...FIRST, text: `mail-of-${lastOwnerAt(jobs, round)}@` }),
  metrics: ({ db }) => Promise.all([findUnfinished(db, Date.now()), findBacklog(db)]),
  'replay-owner': ({ db, jobs }, round) =>
    readEvents(db, { after: 0, upTo: FOREVER_MS, filter: { subject: ownerAt(endedAt(jobs, round)) }, limit: 200 }),
  'replay-job': ({ db, jobs }, round) =>
    readEvents(db, { after: 0, upTo: FOREVER_MS, filter: { jobId: jobIdOf((round * 37) % jobs) }, limit: 200 }),
  start: ({ db, services, type }, round) =>
    db.transaction((tx) =>
      services.jobs.create(tx, {
        type,
        createdBy: ownerAt(round),
        asker: { id: ownerAt(round), scopes: [] },
        projectId: null,
        work: { input: new JsonText('{"topic":"sales"}'), continues: null },
      }),
    ),
  settle: async ({ services, type, jobs }, round) => {
    const n = jobs - UNFINISHED + round
    const body = JSON.stringify({
      run_id: runIdOf(n),
      thread_id: threadIdOf(n),
      status: 'success',
      values: { report: { title: 'Quarterly report' } },
    })
    const callback = {
      payload: await parseCallback(body, type.wantedValues),
      type,
      path: '/',
      jobId: jobIdOf(n),
      receivedAtMs: Date.now(),
    }
    const { outcome } = await services.intake.receive(callback)
    if (outcome !== 'applied') throw new Error(`A callback was not applied: ${outcome}`)
  },
  sweep: async ({ services }) => {
    await services.jobWorker.takeDue(3)
    await services.jobWorker.idle()
  },
  'trim-events': ({ db }) => trimEvents(db, { beforeMs: FOREVER_MS, limit: 10 }),
  'trim-callbacks': ({ db }) => trimCallbacks(db, range()),
  'trim-timeline': ({ db }) => trimTimeline(db, range()),
  'trim-notifications': ({ db }) => trimNotifications(db, range(), endedBefore),
}

/** So few rows that the records of 1,000 jobs last for all rounds. */
function range() {
  return { after: '', beforeMs: Date.UTC(2026, 0, 1), nowMs: Date.UTC(2026, 0, 1), limit: 5 }
}
