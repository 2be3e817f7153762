import { type InfiniteData, useQueryClient } from '@tanstack/preact-query'
import { useEffect, useState } from 'preact/hooks'
import { useOperator } from '../../api/operator.ts'
import type { Page } from '../../api/queries.ts'
import { hasEnded, type JobRow, type JobStatus } from '../../api/types.ts'

/**
 * Follows the events of every user. Jobs on the screen change in place. New jobs are only counted, so that the list does
 * not move while the operator uses it.
 */
export function useNewJobs(queryKey: readonly [string]) {
  const { api } = useOperator()
  const queries = useQueryClient()
  const [arrived, setArrived] = useState(0)
  const [path] = queryKey
  useEffect(() => {
    const stopping = new AbortController()
    void follow(stopping.signal)
    return () => stopping.abort()

    async function follow(signal: AbortSignal): Promise<void> {
      try {
        for await (const event of api.events({ all: true, signal })) {
          if (event.type === 'reset') void queries.invalidateQueries({ queryKey: [path] })
          else if (event.type === 'job.created') setArrived((count) => count + 1)
          else if (event.type.startsWith('job.')) patch(event.data as JobChange, event.created_at)
        }
      } catch {
        // The page also reads the lists again regularly. Without the stream, changes only appear later.
      }
    }

    function patch({ job_id, status, settled_by }: JobChange, at: string): void {
      const finished_at = hasEnded(status) ? at : null
      queries.setQueriesData<InfiniteData<Page<JobRow>>>({ queryKey: [path] }, (old) => {
        if (!old || !('pages' in old)) return old
        const change = (job: JobRow) =>
          job.id === job_id ? ({ ...job, status, settled_by, finished_at } as JobRow) : job
        return { ...old, pages: old.pages.map((page) => ({ ...page, data: page.data.map(change) })) }
      })
    }
  }, [api, queries, path])
  return { arrived, clear: () => setArrived(0) }
}

interface JobChange {
  job_id: string
  status: JobStatus
  settled_by: string | null
}
