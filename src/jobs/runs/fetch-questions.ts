import type { Queryable } from '../../db/database.ts'
import { NO_VALUES } from '../../runtime/read-answers.ts'
import type { RuntimeClient } from '../../runtime/runtime-client.ts'
import type { ThreadState } from '../../runtime/runtime-types.ts'
import { findThread } from '../thread-store.ts'

/**
 * The state with the questions of a paused run, which is the first of `runs`; the runs before it follow, newest first. On a
 * pinned thread the newest state may be that of another branch. Null when the runtime does not know the thread.
 */
export async function fetchQuestions(
  db: Queryable,
  runtime: RuntimeClient,
  { threadId, runs: [paused, ...runsBefore] }: { threadId: string; runs: readonly string[] },
  signal?: AbortSignal,
): Promise<ThreadState | null> {
  const isPinned = paused !== undefined && (await findThread(db, threadId))?.is_pinned === 1
  const ofBranch = isPinned ? await runtime.fetchState(threadId, paused, NO_VALUES, { signal, runsBefore }) : null
  return ofBranch ?? runtime.fetchNewestState(threadId, NO_VALUES, signal)
}
