import { Link } from 'wouter-preact'
import { useOperator } from '../api/operator.ts'
import { useResource } from '../api/queries.ts'
import { Button } from '../ui/button.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { Time } from '../ui/time.tsx'
import { useUrlFilters } from '../ui/url-filters.ts'
import { BulkDialog, countOf, requestOf } from './jobs/bulk-dialog.tsx'
import { OperationProgress, useOperation } from './jobs/operation.tsx'

interface FailureGroup {
  type: string
  error_code: string
  count: number
  before: number | null
  last_at: string
  message: string | null
}

interface Failures {
  since: string
  data: FailureGroup[]
  at_least: boolean
}

const WINDOWS_MS = { '1h': 3_600_000, '24h': 24 * 3_600_000, '7d': 7 * 24 * 3_600_000 } as const

/** Failed jobs by type and error, with the change to the time before. All of a group can be retried. */
export function FailuresPage() {
  const { operator } = useOperator()
  const { filters, hrefWith } = useUrlFilters(['window'])
  const window = filters.window && filters.window in WINDOWS_MS ? (filters.window as keyof typeof WINDOWS_MS) : '1h'
  // By the minute, so that the page does not ask for another time whenever it is drawn.
  const since = new Date(Math.floor(Date.now() / 60_000) * 60_000 - WINDOWS_MS[window]).toISOString()
  const failures = useResource<Failures>('/v1/failures', { query: { since }, refreshMs: 10_000, keepsLast: true })
  const bulk = useOperation()
  const filterOf = ({ type, error_code }: FailureGroup) => ({
    status: 'failed',
    type,
    error_code,
    finished_after: failures.data?.since ?? since,
  })
  return (
    <>
      <PageHead title="Failures">
        <nav class="tabs" aria-label="Time span">
          {Object.keys(WINDOWS_MS).map((one) => (
            <Link key={one} href={hrefWith({ window: one })} aria-current={one === window ? 'true' : undefined}>
              {one}
            </Link>
          ))}
        </nav>
      </PageHead>
      <p class="muted">
        A group has the failed jobs of one type with one error code. Their messages may differ: the newest one is shown.
      </p>
      {bulk.started !== null && <OperationProgress id={bulk.started} />}
      <Loaded query={failures}>
        {failures.data?.at_least && (
          <p class="notice">Only the 5,000 jobs that failed last are counted here. There may be more in this time.</p>
        )}
        <DataTable
          label="Failed jobs by type and error, most frequent first"
          empty="No job failed in this time"
          rows={(failures.data?.data ?? []).map((group) => ({ ...group, id: `${group.type} ${group.error_code}` }))}
          columns={[
            {
              title: 'Error',
              render: (group) => (
                <>
                  <strong>{group.error_code.replaceAll('_', ' ')}</strong> <span class="muted id">{group.message}</span>
                </>
              ),
            },
            { title: 'Type', render: ({ type }) => type },
            {
              title: 'Jobs',
              numeric: true,
              render: (group) => (
                <Link href={`/jobs?${new URLSearchParams(filterOf(group))}`}>
                  {countOf(group.count, 'job', failures.data?.at_least)}
                </Link>
              ),
            },
            { title: 'Trend', render: (group) => trendOf(group, window) },
            { title: 'Last', render: ({ last_at }) => <Time at={last_at} /> },
            ...(operator.mayAct
              ? [
                  {
                    title: 'Actions',
                    render: (group: FailureGroup) => (
                      <Button
                        kind="quiet"
                        label={`Retry all of these: ${group.type}, ${group.error_code}`}
                        onClick={() => bulk.count(requestOf('retry', { filter: filterOf(group) }))}
                      >
                        Retry all of these
                      </Button>
                    ),
                  },
                ]
              : []),
          ]}
        />
      </Loaded>
      {bulk.asked && <BulkDialog action="retry" bulk={bulk} />}
    </>
  )
}

function trendOf({ count, before }: FailureGroup, window: string): string {
  if (before === null) return '–'
  if (before === 0) return `new: none in the ${window} before`
  const sign = count > before ? '▲' : count < before ? '▼' : '='
  return `${sign} ${before.toLocaleString()} in the ${window} before`
}
