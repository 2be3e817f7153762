import { useQueryClient } from '@tanstack/preact-query'
import { useEffect, useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { useOperator } from '../../api/operator.ts'
import { useList, useResource } from '../../api/queries.ts'
import { FAILURE_CODES, type JobCounts, type JobRow, type JobStatus, STATUSES } from '../../api/types.ts'
import { Badge } from '../../ui/badge.tsx'
import { Button } from '../../ui/button.tsx'
import { FilterBar, type FilterField, withTypes } from '../../ui/filter-bar.tsx'
import { useListKeys } from '../../ui/keyboard.ts'
import { PageHead } from '../../ui/page-head.tsx'
import { Loaded } from '../../ui/states.tsx'
import { DataTable } from '../../ui/table.tsx'
import { duration, Time } from '../../ui/time.tsx'
import { useUrlFilters } from '../../ui/url-filters.ts'
import { useTypeNames } from '../job-types.tsx'
import { Owner } from '../people/owner.tsx'
import { BulkActions } from './bulk-actions.tsx'
import { countOf } from './bulk-dialog.tsx'
import { SavedViews } from './saved-views.tsx'
import { useNewJobs } from './use-new-jobs.ts'

const FIELDS: readonly FilterField[] = [
  { name: 'type', label: 'Type', choices: [] },
  { name: 'settled_by', label: 'Noticed by', choices: ['callback', 'read', 'sweep'] },
  { name: 'error_code', label: 'Error', choices: FAILURE_CODES },
  { name: 'retried', label: 'Retried', choices: ['true', 'false'] },
  { name: 'output_check', label: 'Output check', choices: ['failed'] },
  { name: 'created_by', label: 'Owner' },
  { name: 'project_id', label: 'Project' },
  { name: 'thread_id', label: 'Thread' },
  { name: 'trace_id', label: 'Trace' },
  { name: 'created_after', label: 'Created after', type: 'datetime-local' },
  { name: 'created_before', label: 'Created before', type: 'datetime-local' },
  { name: 'finished_after', label: 'Ended after', type: 'datetime-local' },
  { name: 'finished_before', label: 'Ended before', type: 'datetime-local' },
]
const NAMES = ['status', ...FIELDS.map(({ name }) => name)]

export function JobsPage() {
  const { operator } = useOperator()
  const { filters, hrefWith, set } = useUrlFilters(NAMES)
  const fields = withTypes(FIELDS, useTypeNames())
  const jobs = useList<JobRow>('/jobs', { query: { ...filters, fields: 'summary', limit: 50 } })
  const { status: _, ...inEachStatus } = filters
  const counts = useResource<JobCounts>('/v1/jobs/counts', { query: inEachStatus, refreshMs: 10_000 })
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set())
  const filterKey = JSON.stringify(filters)
  // New filters show other jobs, so the selection is cleared.
  useEffect(() => setSelected(new Set()), [filterKey])
  const toggle = (id: string) =>
    setSelected((before) => {
      const next = new Set(before)
      if (!next.delete(id)) next.add(id)
      return next
    })
  const current = useListKeys(jobs.items, {
    href: ({ id }) => `/jobs/${id}`,
    toggle: operator.mayAct ? toggle : undefined,
  })
  const { arrived, isCut } = useNewJobs({ filters, items: jobs.items, hasMore: jobs.hasNextPage })
  const queries = useQueryClient()
  return (
    <>
      <PageHead title="Jobs">
        <SavedViews filters={filters} />
      </PageHead>
      <nav class="tabs" aria-label="Status">
        <Link href={hrefWith({ status: null })} aria-current={filters.status ? undefined : 'true'}>
          All
        </Link>
        {STATUSES.map((status) => (
          <Link key={status} href={hrefWith({ status })} aria-current={filters.status === status ? 'true' : undefined}>
            {status.replaceAll('_', ' ')} <span class="muted">{countText(counts.data, status)}</span>
          </Link>
        ))}
      </nav>
      <FilterBar fields={fields} values={filters} onChange={set} />
      {operator.mayAct && <BulkActions filters={filters} ids={selected} onStarted={() => setSelected(new Set())} />}
      {arrived > 0 && (
        <Button onClick={() => void queries.invalidateQueries({ queryKey: ['/jobs'] })}>
          {countOf(arrived, 'new job', isCut)}
        </Button>
      )}
      <Loaded query={jobs}>
        <DataTable
          label="Jobs, newest first"
          empty={Object.keys(filters).length > 0 ? 'No job fits these filters' : 'No job was started yet'}
          rows={jobs.items}
          href={({ id }) => `/jobs/${id}`}
          current={current}
          {...(operator.mayAct ? { selection: { ids: selected, toggle } } : {})}
          columns={[
            { title: 'Status', render: (job) => <State job={job} /> },
            {
              title: 'Job',
              render: ({ id, type }) => (
                <Link href={`/jobs/${id}`}>
                  {type} <code class="muted id">{id}</code>
                </Link>
              ),
            },
            { title: 'Error', render: ({ error }) => <ErrorCode error={error} /> },
            { title: 'Owner', render: ({ created_by }) => <Owner sub={created_by} />, wide: true },
            { title: 'Noticed by', render: ({ settled_by }) => settled_by ?? '–', wide: true },
            { title: 'Duration', render: (job) => durationOf(job), wide: true, numeric: true },
            { title: 'Created', render: ({ created_at }) => <Time at={created_at} /> },
          ]}
          more={{ has: jobs.hasNextPage, busy: jobs.isFetchingNextPage, load: () => void jobs.fetchNextPage() }}
        />
      </Loaded>
    </>
  )
}

/** Empty for a job that did not fail: on a phone the cell takes no room then. */
function ErrorCode({ error }: { error: JobRow['error'] }) {
  return error && <span title={error.message}>{error.code.replaceAll('_', ' ')}</span>
}

/** The status, with what the job waits for: its start or an answer; and the job that repeats it. */
function State({ job: { status, run_at, run_id, answer_by, retried_as } }: { job: JobRow }) {
  // Its time may be over while it waits for its turn or for a place.
  const starts = Date.parse(run_at ?? '') > Date.now() ? 'starts' : 'was to start'
  const [does, at] = answer_by ? ['expires', answer_by] : status === 'processing' && !run_id ? [starts, run_at] : []
  return (
    <>
      <Badge state={status} />
      {at && (
        <span class="muted">
          {' '}
          {does} <Time at={at} />
        </span>
      )}
      {retried_as && (
        <>
          {' '}
          <Link href={`/jobs/${retried_as}`}>retried</Link>
        </>
      )}
    </>
  )
}

function durationOf({ created_at, finished_at }: JobRow): string {
  return finished_at === null ? '–' : duration(Date.parse(finished_at) - Date.parse(created_at))
}

function countText(counts: JobCounts | undefined, status: JobStatus): string {
  if (!counts) return ''
  return counts.counts[status].toLocaleString() + (counts.at_least.includes(status) ? '+' : '')
}
