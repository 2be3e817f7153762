import type { RunObservation } from '../job.ts'

/** An observation of the job's run, or the reason why there is none. */
export type CheckOutcome = (RunObservation & UnsentStart) | FailedCheck

interface UnsentStart {
  /** The counted attempt to start the run did not reach the runtime. */
  isUnsent?: boolean
}

export interface FailedCheck extends UnsentStart {
  error: string
  /** What the runtime answered before a later call of the check failed. */
  seen?: RunObservation | undefined
  /** When the thread was first seen without the run of an earlier attempt to start it. */
  unseenAtMs?: number
  /** The time of the next check; absent: after the backoff. */
  nextAtMs?: number
}
