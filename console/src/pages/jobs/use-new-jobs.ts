import { type InfiniteData, useQueryClient } from '@tanstack/preact-query'
import { useEffect, useRef, useState } from 'preact/hooks'
import { useOperator } from '../../api/operator.ts'
import type { Page } from '../../api/queries.ts'
import { hasEnded, type JobRow, type JobStatus } from '../../api/types.ts'

/** While jobs begin and end all the time, the newest ones are read only this often. */
const PAUSE_MS = 2_000
const PAGE = 100

interface ShownJobs {
  /** The filters of the list, as the service takes them. */
  filters: Record<string, string>
  items: readonly JobRow[]
  /** The list has older jobs that are not shown yet. */
  hasMore: boolean
}

/**
 * Follows the events of every user. Jobs on the screen change in place. New jobs that fit the filters are only counted, so
 * that the list does not move while the operator uses it. An event does not have all that a filter needs, so the service
 * is asked for the newest jobs that fit. `isCut`: there may be more than `arrived`.
 */
export function useNewJobs({ filters, items, hasMore }: ShownJobs) {
  const { api } = useOperator()
  const queries = useQueryClient()
  const [read, setRead] = useState<{ key: string; jobs: JobRow[]; hasMore: boolean } | null>(null)
  const key = JSON.stringify(filters)
  const oldest = (hasMore && items.at(-1)?.id) || ''
  // Without filters, new jobs are above all others. With filters, an old job may begin to fit further down.
  const end = (key === '{}' ? items[0]?.id : oldest) ?? ''
  const latest = useRef({ filters, key, end, count: items.length })
  latest.current = { filters, key, end, count: items.length }
  useEffect(() => {
    const stopping = new AbortController()
    const { signal } = stopping
    let isWaiting = false
    void follow()
    return () => stopping.abort()

    async function follow(): Promise<void> {
      try {
        for await (const event of api.events({ all: true, signal })) {
          if (event.type === 'reset') void queries.invalidateQueries({ queryKey: ['/jobs'] })
          else if (!event.type.startsWith('job.')) continue
          else if (event.type !== 'job.created') patch(event.data as JobChange, event.created_at)
          // Without filters, only a new job can be new in the list.
          if (event.type === 'job.created' || latest.current.key !== '{}') readSoon()
        }
      } catch {
        // The page also reads the lists again regularly. Without the stream, changes only appear later.
      }
    }

    function readSoon(): void {
      if (isWaiting) return
      isWaiting = true
      setTimeout(() => {
        isWaiting = false
        if (!signal.aborted) void readNewest(latest.current)
      }, PAUSE_MS)
    }

    /** Reads down to `end`, or a page more than the screen has: if all these fit, a page of them is new. */
    async function readNewest({ filters, key, end, count }: typeof latest.current): Promise<void> {
      const jobs: JobRow[] = []
      let cursor: string | null = null
      try {
        for (let pages = Math.ceil(count / PAGE) + 1; pages > 0; pages--) {
          const query = { ...filters, fields: 'summary', limit: PAGE, cursor }
          const page: Page<JobRow> = await api.request('GET', '/jobs', { query, signal })
          jobs.push(...page.data)
          cursor = page.has_more && !page.data.some(({ id }) => id <= end) ? page.next_cursor : null
          if (cursor === null) break
        }
        setRead({ key, jobs, hasMore: cursor !== null })
      } catch {
        // The next event tries it again.
      }
    }

    function patch({ job_id, status, error, settled_by }: JobChange, at: string): void {
      const finished_at = hasEnded(status) ? at : null
      queries.setQueriesData<InfiniteData<Page<JobRow>>>({ queryKey: ['/jobs'] }, (old) => {
        if (!old || !('pages' in old)) return old
        const change = (job: JobRow) =>
          job.id === job_id ? ({ ...job, status, error, settled_by, finished_at } as JobRow) : job
        return { ...old, pages: old.pages.map((page) => ({ ...page, data: page.data.map(change) })) }
      })
    }
  }, [api, queries])
  const shown = new Set(items.map(({ id }) => id))
  const newest = read?.key === key ? read : null
  const arrived = (newest?.jobs ?? []).filter(({ id }) => id > oldest && !shown.has(id)).length
  return { arrived, isCut: newest?.hasMore === true }
}

interface JobChange {
  job_id: string
  status: JobStatus
  error: JobRow['error']
  settled_by: string | null
}
