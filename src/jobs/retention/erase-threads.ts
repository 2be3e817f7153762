import type { Queryable } from '../../db/database.ts'
import { CHECK_ERRORS, RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { UnacceptableAnswer } from '../../runtime/read-answers.ts'
import { countIdentities } from '../identity-store.ts'
import type { JobContext } from '../job-context.ts'
import { findOwnedThreads, findReplaced, findThreadsToErase } from '../thread-store.ts'
import { hasJobs } from './erase-store.ts'

const AT_ONCE = 20
/** How many pages of threads of other clients are passed over. */
const MAX_PAGES = 50
const JOB_ID = /^job_[0-9a-z]{26}$/
/** How long a runtime that fails is asked again, from its first failure on. After that the erasure goes on without it. */
const DELETE_WITHIN_MS = 10 * 60_000

const OF_OTHER_CLIENT = 'another client created it'
const OF_OTHER_OWNER = 'it has jobs of another owner'
const STAYS = 'The thread stays at the runtime'
export const STAYS_WITH_OTHERS = `${STAYS}: ${OF_OTHER_OWNER}`

interface Failure {
  object_id: string
  error: string
}

/** Why it failed for good; null if it succeeded; undefined if it is to be tried again. */
type Attempt = (threadId: string | null, work: () => Promise<void>) => Promise<string | null | undefined>

/** What became of threads of an erased user at the runtime. */
export interface ErasedThreads {
  /** The conversations that were handled: they lose their owner. */
  ids: string[]
  /** What stays at the runtime, and why. */
  failures: Failure[]
  /** There may be more threads to delete: now, or after a pause because the runtime failed. */
  next: 'end' | 'more' | 'pause'
  /** Absent: as before. */
  isFailing?: boolean
}

/**
 * Deletes some threads of a user at the runtime, once all the user's jobs are erased: those of conversations, then those of
 * deleted jobs, which only the runtime knows. It runs outside of a transaction, and repeating it does no harm. The thread of
 * another client is left to that client, and one with jobs of another owner to that owner.
 */
export async function deleteThreadsAtRuntime(
  context: JobContext,
  { owner, failingSinceMs, signal }: { owner: string; failingSinceMs: number | null; signal: AbortSignal },
): Promise<ErasedThreads> {
  const { db, runtime, clock, log } = context
  const erased: ErasedThreads = { ids: [], failures: [], next: 'more' }
  if (await hasJobs(db, owner)) return erased
  const isFailing = failingSinceMs !== null
  const isOver = runtime === null || (isFailing && clock.now() >= failingSinceMs + DELETE_WITHIN_MS)
  // Once the time is over, it stays over: each further thread is tried once.
  if (isFailing && !isOver) erased.isFailing = false
  const attempt: Attempt = async (threadId, work) => {
    try {
      await work()
      return null
    } catch (error) {
      if (signal.aborted) throw error
      if (!(error instanceof RuntimeUnavailable) && !(error instanceof UnacceptableAnswer)) throw error
      log.warn({ threadId, err: error }, 'conversation.delete_failed')
      return isOver ? error.message : undefined
    }
  }
  const pause: ErasedThreads = { ids: [], failures: [], next: 'pause', isFailing: true }
  const known = await findThreadsToErase(db, owner, AT_ONCE)
  for (const thread of known) {
    const failures: Failure[] = []
    for (const { id, is_own, is_shared } of await threadsOf(db, thread)) {
      const failed =
        is_own === 0
          ? OF_OTHER_CLIENT
          : is_shared === 1
            ? OF_OTHER_OWNER
            : await attempt(id, () => deleteThread(context, id, signal))
      if (failed === undefined) return pause
      if (failed !== null) failures.push({ object_id: id, error: `${STAYS}: ${failed}` })
    }
    erased.ids.push(thread.id)
    erased.failures.push(...failures)
  }
  if (known.length > 0) return erased
  const failed = await attempt(null, async () => {
    erased.next = await deleteForgotten(context, { owner, signal, attempt, failures: erased.failures })
  })
  if (failed === undefined || erased.next === 'pause') return pause
  const reason = failed ?? (erased.next === 'end' ? await findGapOfSearch(context) : null)
  if (reason === null) return erased
  const gap = { object_id: owner, error: `Threads of deleted jobs may stay: ${reason}` }
  return { ...erased, next: 'end', failures: [...erased.failures, gap] }
}

/** Why the search by the owner cannot find all threads of deleted jobs; null: it finds all. */
async function findGapOfSearch({ db, runtime, identify }: JobContext): Promise<string | null> {
  const kinds = await countIdentities(db)
  if (kinds === 0) return null
  if (runtime === null) return CHECK_ERRORS.not_configured
  if (identify === null) return 'with RUNTIME_IDENTITY=none the runtime does not know whose threads they are'
  return kinds > 1
    ? 'RUNTIME_IDENTITY or its secret was changed, and older threads name their owner in another way'
    : null
}

type KnownThread = Awaited<ReturnType<typeof findThreadsToErase>>[number]

/** The thread of a conversation, after those that it replaced. These have no turn of another owner. */
async function threadsOf(db: Queryable, thread: KnownThread): Promise<KnownThread[]> {
  const replaced = await findReplaced(db, thread.id)
  return [...replaced.map((left) => ({ ...left, is_shared: 0 })), thread]
}

async function deleteThread({ runtime }: JobContext, id: string, signal: AbortSignal): Promise<void> {
  if (runtime === null) throw new RuntimeUnavailable('not_configured')
  await runtime.deleteThread(id, signal)
}

/**
 * Deletes some threads that the runtime lists under the user, and adds those that stay to `failures`: those with jobs of
 * another owner, and, once the time is over, those that the runtime does not delete. After the first of these it goes on to
 * the end of the list, because the next step would find them again.
 */
async function deleteForgotten(
  { db, runtime, identify }: JobContext,
  { owner, signal, attempt, failures }: { owner: string; signal: AbortSignal; attempt: Attempt; failures: Failure[] },
): Promise<ErasedThreads['next']> {
  if (runtime === null || identify === null) return 'end'
  let offset = 0
  let haveFailed = false
  const identity = identify(owner)
  const find = () => runtime.searchThreads({ owner: identity }, { limit: AT_ONCE, offset }, signal)
  for (let page = 0; page < MAX_PAGES; page++) {
    const found = await find()
    // Another client may name the user, too, in threads of its own. A runtime may answer with threads of other users.
    const named = found.filter(({ metadata }) => metadata.owner === identity && JOB_ID.test(String(metadata.job_id)))
    const started = named.map(({ threadId }) => threadId)
    const owned = started.length === 0 ? [] : await findOwnedThreads(db, started)
    failures.push(...owned.map((id) => ({ object_id: id, error: STAYS_WITH_OTHERS })))
    const own = started.filter((id) => !owned.includes(id))
    let deleted = 0
    for (const id of own) {
      const failed = await attempt(id, () => runtime.deleteThread(id, signal))
      if (failed === undefined) return 'pause'
      if (failed === null) deleted += 1
      else failures.push({ object_id: id, error: `${STAYS}: ${failed}` })
    }
    haveFailed ||= deleted < own.length
    if (deleted > 0) {
      const failed = new Set(failures.map(({ object_id }) => object_id))
      const left = new Set((await find()).map(({ threadId }) => threadId))
      const stay = own.filter((id) => left.has(id) && !failed.has(id))
      failures.push(...stay.map((id) => ({ object_id: id, error: `${STAYS}: ${CHECK_ERRORS.threads_stay}` })))
      if (stay.length > 0) throw new RuntimeUnavailable('threads_stay')
      if (!haveFailed) return 'more'
    }
    if (found.length < AT_ONCE) return 'end'
    offset += AT_ONCE - deleted
  }
  throw new RuntimeUnavailable('too_many_threads')
}
