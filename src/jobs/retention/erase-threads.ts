import { RuntimeUnavailable } from '../../runtime/check-errors.ts'
import type { JobContext } from '../job-context.ts'
import { findReplaced, findThreadsToErase } from '../thread-store.ts'
import { hasJobs } from './erase-store.ts'

const AT_ONCE = 20
/** How long a runtime that fails is asked again. After that the erasure goes on without it. */
const DELETE_WITHIN_MS = 10 * 60_000

/** Conversations of an erased user: deleted at the runtime, or why not. */
export interface ErasedThreads {
  threads: readonly { id: string; error: string | null }[]
  /** The runtime failed, and is asked again later. */
  isUnavailable: boolean
}

/**
 * Deletes some conversations of a user at the runtime, once all the user's jobs are erased. It runs outside of a transaction,
 * and repeating it does no harm. The thread of another client is left to that client.
 */
export async function deleteThreadsAtRuntime(
  context: JobContext,
  { owner, startedAtMs }: { owner: string; startedAtMs: number },
): Promise<ErasedThreads> {
  const { db, runtime, clock, log } = context
  const threads: { id: string; error: string | null }[] = []
  if (await hasJobs(db, owner)) return { threads, isUnavailable: false }
  for (const { id, is_own } of await findThreadsToErase(db, owner, AT_ONCE)) {
    try {
      if (is_own === 1) await deleteThread(context, id)
      threads.push({ id, error: is_own === 1 ? null : 'Another client created the thread: delete it at the runtime' })
    } catch (error) {
      if (!(error instanceof RuntimeUnavailable)) throw error
      log.warn({ threadId: id, err: error }, 'conversation.delete_failed')
      if (runtime !== null && clock.now() < startedAtMs + DELETE_WITHIN_MS) return { threads, isUnavailable: true }
      threads.push({ id, error: `The thread was not deleted: ${error.message}` })
    }
  }
  return { threads, isUnavailable: false }
}

async function deleteThread({ db, runtime }: JobContext, threadId: string): Promise<void> {
  if (runtime === null) throw new RuntimeUnavailable('not_configured')
  const replaced = (await findReplaced(db, threadId)).filter(({ is_own }) => is_own === 1)
  for (const { id } of [...replaced, { id: threadId }]) await runtime.deleteThread(id)
}
