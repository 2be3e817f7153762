import type { Queryable } from '../../db/database.ts'
import { NO_VALUES } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import type { ThreadState } from '../../runtime/runtime-types.ts'
import { findThread } from '../thread-store.ts'

/**
 * The state with the questions of a paused run. On a pinned thread the newest state may be that of another branch. Null
 * when the runtime does not know the thread.
 */
export async function fetchQuestions(
  db: Queryable,
  runtime: RuntimeClient,
  { threadId, pausedRunId }: { threadId: string; pausedRunId: string | null },
  signal?: AbortSignal,
): Promise<ThreadState | null> {
  const thread = await findThread(db, threadId)
  return pausedRunId !== null && thread?.is_pinned === 1
    ? runtime.fetchState(threadId, pausedRunId, NO_VALUES, { signal })
    : runtime.fetchNewestState(threadId, NO_VALUES, signal)
}
