import { writeJson } from '../core/json/json-text.ts'
import type { Database } from '../db/database.ts'
import { toJob, toPause } from '../jobs/api/present-job.ts'
import type { ListedJob } from '../jobs/job-row.ts'
import { findJobPage } from '../jobs/lists/list-store.ts'
import { findPauses, PAUSE_BYTES } from '../jobs/settlement/pause-store.ts'
import { listThreadsOf } from '../jobs/thread-store.ts'
import { toProject } from '../projects/project-routes.ts'
import { findProjectsOf } from '../projects/project-store.ts'
import { toDevice } from '../push/api/device-routes.ts'
import { listDevices } from '../push/device-store.ts'
import { isRecipient, listNotificationsOf, listNotificationsTo } from '../push/notification-store.ts'
import { findLimits } from '../usage/limit-store.ts'
import { listUsagePeriods } from '../usage/usage-store.ts'
import { toUser } from '../users/user-routes.ts'
import { findUser } from '../users/user-store.ts'
import { toEndpoint } from '../webhooks/api/endpoint-routes.ts'
import { listEndpointsOf } from '../webhooks/endpoint-store.ts'

const PAGE = 100

/** Whether the service holds anything that belongs to this user. */
export async function isKnownUser(db: Database, sub: string): Promise<boolean> {
  const first = { limit: 1, after: null }
  const [user, devices, jobs, isNotified, limits] = await Promise.all([
    findUser(db, sub),
    listDevices(db, sub, first),
    findJobPage(db, { filter: { createdBy: sub }, summary: true }, first),
    isRecipient(db, sub),
    findLimits(db, [sub]),
  ])
  return user !== undefined || devices.length > 0 || jobs.rows.length > 0 || isNotified || limits.size > 0
}

/**
 * Everything about one user as the pieces of one JSON document. Each piece is one page of records, so that memory stays
 * bounded with any number of jobs. Inputs and outputs keep their exact text.
 */
export async function* exportUser(db: Database, sub: string, refresh: RefreshJobs): AsyncGenerator<string> {
  const user = await findUser(db, sub)
  const usage = await listUsagePeriods(db, sub)
  const limits = (await findLimits(db, [sub])).get(sub) ?? { runs: null, tokens: null }
  yield `{"sub":${JSON.stringify(sub)},"profile":${writeJson(user ? toUser(user) : null)}`
  yield `,"limits":${writeJson(limits)},"usage":${writeJson(usage)}`
  yield* list('devices', (after) => pageOf(listDevices(db, sub, { limit: PAGE, after }), toDevice))
  yield* list('projects', (after) => pageOf(findProjectsOf(db, sub, { limit: PAGE, after }), toProject))
  yield* list('conversations', (after) =>
    pageOf(listThreadsOf(db, sub, { limit: PAGE, after }), ({ id, ...thread }) => ({ ...thread, newest_job: id })),
  )
  yield* list('jobs', (after) => jobsAfter(db, sub, { after, refresh }))
  const notificationsAfter = (after: readonly [string] | null) => listNotificationsTo(db, sub, { limit: PAGE, after })
  yield* list('notifications', (after) => pageOf(notificationsAfter(after), (notification) => notification))
  const endpoints = (await listEndpointsOf(db, sub)).map(toEndpoint)
  yield `,"webhook_endpoints":${writeJson(endpoints)}}`
}

/** Checks the unfinished jobs of a page with the runtime. True if they must be read again. */
export type RefreshJobs = (jobs: readonly ListedJob[]) => Promise<boolean>

interface Page {
  items: object[]
  /** Null after the last page. */
  next: readonly [string] | null
}

async function* list(name: string, read: (after: readonly [string] | null) => Promise<Page>): AsyncGenerator<string> {
  yield `,${JSON.stringify(name)}:[`
  let isFirst = true
  for (let after: readonly [string] | null = null; ; ) {
    const page: Page = await read(after)
    if (page.items.length > 0) yield `${isFirst ? '' : ','}${page.items.map(writeJson).join(',')}`
    isFirst = isFirst && page.items.length === 0
    if (page.next === null) break
    after = page.next
  }
  yield ']'
}

/** Stores read one row more than the limit; the extra row only shows that there are more. */
async function pageOf<Row extends { id: string }>(
  reading: Promise<Row[]>,
  toItem: (row: Row) => object,
): Promise<Page> {
  const rows = await reading
  const shown = rows.slice(0, PAGE)
  const last = shown.at(-1)
  return { items: shown.map(toItem), next: rows.length > PAGE && last ? [last.id] : null }
}

async function jobsAfter(
  db: Database,
  sub: string,
  { after, refresh }: { after: readonly [string] | null; refresh: RefreshJobs },
): Promise<Page> {
  const read = () =>
    findJobPage(db, { filter: { createdBy: sub }, summary: false, moreBytes: PAUSE_BYTES }, { limit: PAGE, after })
  const stored = await read()
  const page = (await refresh(stored.rows)) ? await read() : stored
  const ids = page.rows.map(({ id }) => id)
  const [notifications, pauses] = await Promise.all([listNotificationsOf(db, ids), findPauses(db, ids)])
  const last = page.rows.at(-1)
  return {
    items: page.rows.map((row) => ({
      ...toJob(row),
      pauses: pauses.get(row.id)?.map(toPause) ?? [],
      notifications: notifications.filter(({ job_id }) => job_id === row.id),
    })),
    next: page.hasMore && last ? [last.id] : null,
  }
}
