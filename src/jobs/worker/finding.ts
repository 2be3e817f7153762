import type { Verdict } from '../job.ts'
import type { Notice } from '../settlement/settle.ts'

/** What looking after a job found out. */
export interface Finding {
  runId: string | null
  verdict: Verdict
  traces: Notice['traces']
}
