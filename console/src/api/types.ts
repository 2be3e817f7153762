import type { Job } from '@project-api/client'

export type { Job }
/** A job as a list shows it. */
export type JobRow = Omit<Job, 'input' | 'output'> & { id: string }

export const STATUSES = ['processing', 'generating', 'awaiting_input', 'completed', 'failed', 'cancelled'] as const
export const HAS_ENDED: ReadonlySet<string> = new Set(['completed', 'failed', 'cancelled'])

export interface JobCounts {
  counts: Record<(typeof STATUSES)[number], number>
  at_least: string[]
}

export interface TimelineEntry {
  id: string
  at: string
  kind: string
  via: string | null
  detail: Record<string, unknown>
  times: number
  last_at: string
}

export interface Operation {
  id: string
  action: string
  state: string
  total: number
  done: number
  failed: number
  failures?: { id: string; error: string }[]
}
