import { ApiError } from '../../core/errors.ts'
import { parseCallback } from '../../runtime/callback-payload.ts'
import type { JobContext } from '../job-context.ts'
import type { CallbackAnswer, CallbackIntake } from './callback-intake.ts'
import { findCallback } from './callback-store.ts'

/** Processes a stored callback again, for example after the job types were corrected. Finished jobs stay finished. */
export async function replayStoredCallback(
  context: JobContext,
  intake: CallbackIntake,
  id: string,
): Promise<CallbackAnswer> {
  const stored = await findCallback(context.db, id)
  if (!stored) throw new ApiError('not_found', 'No such callback')
  const type = context.types.get(stored.type)
  if (!type) throw new ApiError('conflict', `The job type ${stored.type} is not configured any more`)
  return intake.receive({
    payload: await parseCallback(stored.body, type.wantedValues),
    type,
    path: stored.path,
    jobId: stored.job_id,
    receivedAtMs: stored.received_at,
    replayOf: stored.id,
  })
}
