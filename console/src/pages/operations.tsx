import { Link } from 'wouter-preact'
import { useList } from '../api/queries.ts'
import type { Operation } from '../api/types.ts'
import { Badge } from '../ui/badge.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { Time } from '../ui/time.tsx'
import { useUrlFilters } from '../ui/url-filters.ts'
import { OperationProgress } from './jobs/operation.tsx'
import { Actor } from './people/owner.tsx'

type OperationRow = Operation & {
  created_by: string
  created_by_kind: string
  created_at: string
  finished_at: string | null
}

/** Bulk operations with their progress. One opens with its failures, and can be stopped. */
export function OperationsPage() {
  const { filters, set, hrefWith } = useUrlFilters(['id'])
  const operations = useList<OperationRow>('/v1/operations', { query: { limit: 50 }, refreshMs: 5_000 })
  return (
    <>
      <PageHead title="Bulk operations" />
      <Loaded query={operations}>
        <DataTable
          label="Bulk operations, newest first"
          empty="No bulk operation was started yet"
          rows={operations.items}
          href={({ id }) => hrefWith({ id })}
          columns={[
            {
              title: 'State',
              render: ({ state }) => <Badge state={state} tone={state === 'done' ? 'good' : undefined} />,
            },
            { title: 'Action', render: ({ id, action }) => <Link href={hrefWith({ id })}>{action}</Link> },
            {
              title: 'Done',
              render: ({ done, total, skipped = 0 }) =>
                `${done.toLocaleString()} of ${total.toLocaleString()}` +
                (skipped > 0 ? `, ${skipped.toLocaleString()} skipped` : ''),
              numeric: true,
            },
            {
              title: 'Failed',
              render: ({ failed }) => (failed > 0 ? `${failed.toLocaleString()} failed` : ''),
              numeric: true,
            },
            {
              title: 'Who',
              render: ({ created_by, created_by_kind }) => <Actor kind={created_by_kind} id={created_by} />,
            },
            { title: 'Started', render: ({ created_at }) => <Time at={created_at} /> },
            { title: 'Ended', render: ({ finished_at }) => <Time at={finished_at} />, wide: true },
          ]}
          more={{
            has: operations.hasNextPage,
            busy: operations.isFetchingNextPage,
            load: () => void operations.fetchNextPage(),
          }}
        />
      </Loaded>
      {filters.id && (
        <Dialog title={filters.id} onClose={() => set({ id: null })}>
          <OperationProgress id={filters.id} />
        </Dialog>
      )}
    </>
  )
}
