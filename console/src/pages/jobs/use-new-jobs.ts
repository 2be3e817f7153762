import { type InfiniteData, useQueryClient } from '@tanstack/preact-query'
import { useEffect, useRef, useState } from 'preact/hooks'
import { useOperator } from '../../api/operator.ts'
import type { Page } from '../../api/queries.ts'
import { hasEnded, type JobRow, type JobStatus } from '../../api/types.ts'

/** While jobs begin and end all the time, the newest ones are read only this often. */
const PAUSE_MS = 2_000
const MAX_COUNTED = 100

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
 * is asked for the newest jobs that fit.
 */
export function useNewJobs({ filters, items, hasMore }: ShownJobs) {
  const { api } = useOperator()
  const queries = useQueryClient()
  const [read, setRead] = useState<{ key: string; page: Page<JobRow> } | null>(null)
  const key = JSON.stringify(filters)
  const latest = useRef({ filters, key })
  latest.current = { filters, key }
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

    async function readNewest(asked: typeof latest.current): Promise<void> {
      const query = { ...asked.filters, fields: 'summary', limit: MAX_COUNTED }
      try {
        setRead({ key: asked.key, page: await api.request<Page<JobRow>>('GET', '/jobs', { query, signal }) })
      } catch {
        // The next event tries it again.
      }
    }

    function patch({ job_id, status, settled_by }: JobChange, at: string): void {
      const finished_at = hasEnded(status) ? at : null
      queries.setQueriesData<InfiniteData<Page<JobRow>>>({ queryKey: ['/jobs'] }, (old) => {
        if (!old || !('pages' in old)) return old
        const change = (job: JobRow) =>
          job.id === job_id ? ({ ...job, status, settled_by, finished_at } as JobRow) : job
        return { ...old, pages: old.pages.map((page) => ({ ...page, data: page.data.map(change) })) }
      })
    }
  }, [api, queries])
  const shown = new Set(items.map(({ id }) => id))
  const oldest = (hasMore && items.at(-1)?.id) || ''
  const newest = read?.key === key ? read.page : null
  const arrived = (newest?.data ?? []).filter(({ id }) => id > oldest && !shown.has(id)).length
  return { arrived, isCut: arrived === MAX_COUNTED && newest?.has_more === true }
}

interface JobChange {
  job_id: string
  status: JobStatus
  settled_by: string | null
}
