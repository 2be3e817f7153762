import type { AuditOrigin } from '../../audit/record-audit.ts'
import { ApiError } from '../../core/errors.ts'
import type { Queryable } from '../../db/database.ts'
import { parseCallback } from '../../runtime/callback-payload.ts'
import { findCallback } from '../callback-store.ts'
import type { JobContext } from '../job-context.ts'
import { ERASED_BODY } from '../retention/erase-store.ts'
import type { CallbackAnswer, CallbackIntake } from './callback-intake.ts'
import type { ReceivedCallback } from './match-callbacks.ts'

/** Processes a stored callback again, for example after the job types were corrected. Finished jobs stay finished. */
export async function replayStoredCallback(
  context: JobContext,
  intake: CallbackIntake,
  replay: { id: string; by: AuditOrigin },
): Promise<CallbackAnswer> {
  return intake.receive(await readStoredCallback(context.db, context, replay))
}

/** A stored callback, as if it had just been received. */
export async function readStoredCallback(
  db: Queryable,
  { types }: Pick<JobContext, 'types'>,
  { id, by }: { id: string; by: AuditOrigin },
): Promise<ReceivedCallback> {
  const stored = await findCallback(db, id)
  if (!stored) throw new ApiError('not_found', 'No such callback')
  if (stored.body === ERASED_BODY) throw new ApiError('conflict', 'The callback was erased with its user')
  const type = types.get(stored.type)
  if (!type) throw new ApiError('conflict', `The job type ${stored.type} is not configured any more`)
  return {
    payload: await parseCallback(stored.body, type.wantedValues),
    type,
    path: stored.path,
    jobId: stored.job_id,
    receivedAtMs: stored.received_at,
    replayOf: stored.id,
    replayedBy: by,
  }
}
