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
const STAYS = 'The thread stays at the runtime'
export const STAYS_WITH_OTHERS = `${STAYS}: it has jobs of another owner`

/** What became of threads of an erased user at the runtime. */
export interface ErasedThreads {
  /** The conversations that were handled: they lose their owner. */
  ids: string[]
  /** What stays at the runtime, and why. */
  failures: { object_id: string; error: string }[]
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
  /** Why it failed for good; null if it succeeded; undefined if it is to be tried again. */
  const attempt = async (threadId: string | null, work: () => Promise<void>): Promise<string | null | undefined> => {
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
    const { id, is_own, is_shared } = thread
    const failed = is_own === 1 ? await attempt(id, () => deleteThread(context, thread, signal)) : OF_OTHER_CLIENT
    if (failed === undefined) return pause
    erased.ids.push(id)
    if (failed !== null) erased.failures.push({ object_id: id, error: `${STAYS}: ${failed}` })
    else if (is_shared === 1) erased.failures.push({ object_id: id, error: STAYS_WITH_OTHERS })
  }
  if (known.length > 0) return erased
  const failed = await attempt(null, async () => {
    const { hasMore, shared } = await deleteForgotten(context, owner, signal)
    erased.failures = shared.map((id) => ({ object_id: id, error: STAYS_WITH_OTHERS }))
    erased.next = hasMore ? 'more' : 'end'
  })
  if (failed === undefined) return pause
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

/** The threads that the conversation has left have no turn of another owner. */
async function deleteThread(
  { db, runtime }: JobContext,
  { id: threadId, is_shared }: KnownThread,
  signal: AbortSignal,
): Promise<void> {
  if (runtime === null) throw new RuntimeUnavailable('not_configured')
  const replaced = (await findReplaced(db, threadId)).filter(({ is_own }) => is_own === 1).map(({ id }) => id)
  for (const id of is_shared === 1 ? replaced : [...replaced, threadId]) await runtime.deleteThread(id, signal)
}

/** Deletes some threads that the runtime lists under the user. `shared`: those that stay, because of jobs of another owner. */
async function deleteForgotten(
  { db, runtime, identify }: JobContext,
  owner: string,
  signal: AbortSignal,
): Promise<{ hasMore: boolean; shared: string[] }> {
  const shared: string[] = []
  if (runtime === null || identify === null) return { hasMore: false, shared }
  const find = (offset: number) => runtime.searchThreads({ owner: identify(owner) }, { limit: AT_ONCE, offset }, signal)
  for (let page = 0; page < MAX_PAGES; page++) {
    const found = await find(page * AT_ONCE)
    // Another client may name the user, too, in threads of its own.
    const started = found.filter(({ metadata }) => JOB_ID.test(String(metadata.job_id))).map(({ threadId }) => threadId)
    const owned = started.length === 0 ? [] : await findOwnedThreads(db, started)
    shared.push(...owned)
    const own = started.filter((id) => !owned.includes(id))
    if (own.length === 0 && found.length < AT_ONCE) return { hasMore: false, shared }
    if (own.length === 0) continue
    for (const id of own) await runtime.deleteThread(id, signal)
    const left = new Set((await find(page * AT_ONCE)).map(({ threadId }) => threadId))
    if (own.some((id) => left.has(id))) throw new RuntimeUnavailable('threads_stay')
    return { hasMore: true, shared }
  }
  throw new RuntimeUnavailable('too_many_threads')
}
