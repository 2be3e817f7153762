import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import { UnacceptableAnswer } from '../../runtime/read-answers.ts'
import type { JobContext } from '../job-context.ts'
import { findReplaced, findThreadsToErase } from '../thread-store.ts'
import { hasJobs } from './erase-store.ts'

const AT_ONCE = 20
/** How many pages of threads of other clients are passed over. */
const MAX_PAGES = 50
const JOB_ID = /^job_[0-9a-z]{26}$/
/** How long a runtime that fails is asked again. After that the erasure goes on without it. */
const DELETE_WITHIN_MS = 10 * 60_000

/** What became of threads of an erased user at the runtime. */
export interface ErasedThreads {
  /** The conversations that were handled: deleted, or left, and why. */
  threads: { id: string; error: string | null }[]
  /** There may be more threads to delete: now, or after a pause because the runtime failed. */
  next: 'end' | 'more' | 'pause'
  /** Why threads of deleted jobs may be left. */
  searchError: string | null
}

/**
 * Deletes some threads of a user at the runtime, once all the user's jobs are erased: those of conversations, then those of
 * deleted jobs, which only the runtime knows. It runs outside of a transaction, and repeating it does no harm. The thread of
 * another client is left to that client.
 */
export async function deleteThreadsAtRuntime(
  context: JobContext,
  { owner, startedAtMs }: { owner: string; startedAtMs: number },
): Promise<ErasedThreads> {
  const { db, runtime, clock, log } = context
  const erased: ErasedThreads = { threads: [], next: 'more', searchError: null }
  if (await hasJobs(db, owner)) return erased
  const isOver = runtime === null || clock.now() >= startedAtMs + DELETE_WITHIN_MS
  /** Why it failed for good; null if it succeeded; undefined if it is to be tried again. */
  const attempt = async (threadId: string | null, work: () => Promise<void>): Promise<string | null | undefined> => {
    try {
      await work()
      return null
    } catch (error) {
      if (!(error instanceof RuntimeUnavailable) && !(error instanceof UnacceptableAnswer)) throw error
      log.warn({ threadId, err: error }, 'conversation.delete_failed')
      return isOver ? error.message : undefined
    }
  }
  const known = await findThreadsToErase(db, owner, AT_ONCE)
  for (const { id, is_own } of known) {
    const failed = is_own === 1 ? await attempt(id, () => deleteThread(context, id)) : 'another client created it'
    if (failed === undefined) return { ...erased, next: 'pause' }
    erased.threads.push({ id, error: failed && `The thread stays at the runtime: ${failed}` })
  }
  if (known.length > 0) return erased
  const failed = await attempt(null, async () => {
    erased.next = (await deleteForgotten(context, owner)) ? 'more' : 'end'
  })
  if (failed === undefined) return { ...erased, next: 'pause' }
  return failed === null
    ? erased
    : { ...erased, next: 'end', searchError: `Threads of deleted jobs may stay: ${failed}` }
}

async function deleteThread({ db, runtime }: JobContext, threadId: string): Promise<void> {
  if (runtime === null) throw new RuntimeUnavailable('not_configured')
  const replaced = (await findReplaced(db, threadId)).filter(({ is_own }) => is_own === 1)
  for (const { id } of [...replaced, { id: threadId }]) await runtime.deleteThread(id)
}

/** True if there may be more. */
async function deleteForgotten({ runtime, identify }: JobContext, owner: string): Promise<boolean> {
  if (runtime === null || identify === null) return false
  const find = (offset: number) => runtime.searchThreads({ owner: identify(owner) }, { limit: AT_ONCE, offset })
  for (let page = 0; page < MAX_PAGES; page++) {
    const found = await find(page * AT_ONCE)
    // Another client may name the user, too, in threads of its own.
    const own = found.filter(({ metadata }) => JOB_ID.test(String(metadata.job_id)))
    if (own.length === 0 && found.length < AT_ONCE) return false
    if (own.length === 0) continue
    for (const { threadId } of own) await runtime.deleteThread(threadId)
    const left = new Set((await find(page * AT_ONCE)).map(({ threadId }) => threadId))
    if (own.some(({ threadId }) => left.has(threadId))) throw new RuntimeUnavailable('threads_stay')
    return true
  }
  throw new RuntimeUnavailable('too_many_threads')
}
