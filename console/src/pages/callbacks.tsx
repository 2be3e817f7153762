import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { useOperator } from '../api/operator.ts'
import { useAction, useList } from '../api/queries.ts'
import { Badge } from '../ui/badge.tsx'
import { Button } from '../ui/button.tsx'
import { FilterBar, type FilterField, withTypes } from '../ui/filter-bar.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { Time } from '../ui/time.tsx'
import { useUrlFilters } from '../ui/url-filters.ts'
import { CallbackBody, type CallbackRow } from './job/job-callbacks.tsx'
import { useTypeNames } from './job-types.tsx'
import { BulkDialog, requestOf } from './jobs/bulk-dialog.tsx'
import { OperationProgress, useOperation } from './jobs/operation.tsx'
import { RefusedCallbacks } from './refused-callbacks.tsx'

const FIELDS: readonly FilterField[] = [
  { name: 'outcome', label: 'Outcome', choices: ['applied', 'duplicate', 'stale', 'adopted', 'deferred'] },
  { name: 'type', label: 'Type', choices: [] },
  { name: 'job_id', label: 'Job' },
  { name: 'received_after', label: 'Received after', type: 'datetime-local' },
  { name: 'received_before', label: 'Received before', type: 'datetime-local' },
]

/** The callbacks of the runtime, with the outcome of each. */
export function CallbacksPage() {
  const { operator } = useOperator()
  const { filters: found, set } = useUrlFilters(['id', 'refused', ...FIELDS.map(({ name }) => name)])
  const { id: linked, refused, ...filters } = found
  const fields = withTypes(FIELDS, useTypeNames())
  const callbacks = useList<CallbackRow>('/v1/callbacks', { query: { ...filters, limit: 50 }, refreshMs: 10_000 })
  const [opened, setOpened] = useState<string | null>(null)
  const shown = opened ?? linked ?? null
  const replay = useAction<{ outcome: string }>(({ outcome }) => `The callback was replayed: ${outcome}`)
  const bulk = useOperation()
  return (
    <>
      <PageHead title="Callbacks">
        {operator.mayAct && Object.keys(filters).length > 0 && (
          <Button onClick={() => bulk.count(requestOf('replay', { filter: filters }))}>
            Replay all that fit these filters
          </Button>
        )}
      </PageHead>
      <FilterBar fields={fields} values={filters} onChange={set} />
      {bulk.started !== null && <OperationProgress id={bulk.started} />}
      <RefusedCallbacks id={refused} />
      <Loaded query={callbacks}>
        <DataTable
          label="Callbacks, newest first"
          empty={Object.keys(filters).length > 0 ? 'No callback fits these filters' : 'No callback arrived yet'}
          rows={callbacks.items}
          columns={[
            { title: 'Outcome', render: ({ outcome }) => <Badge state={outcome} /> },
            { title: 'Run status', render: ({ status }) => status },
            {
              title: 'Job',
              render: ({ job_id }) =>
                job_id === null ? (
                  '–'
                ) : (
                  <Link href={`/jobs/${job_id}`}>
                    <code class="id">{job_id}</code>
                  </Link>
                ),
            },
            { title: 'Received', render: ({ received_at }) => <Time at={received_at} /> },
            {
              title: 'Actions',
              render: ({ id }) => (
                <span class="actions">
                  <Button kind="quiet" label={`Show the body of ${id}`} onClick={() => setOpened(id)}>
                    Body
                  </Button>
                  {operator.mayAct && (
                    <Button
                      kind="quiet"
                      busy={replay.isPending}
                      label={`Replay ${id}`}
                      onClick={() => replay.mutate({ method: 'POST', path: `/v1/callbacks/${id}/replay` })}
                    >
                      Replay
                    </Button>
                  )}
                </span>
              ),
            },
          ]}
          more={{
            has: callbacks.hasNextPage,
            busy: callbacks.isFetchingNextPage,
            load: () => void callbacks.fetchNextPage(),
          }}
        />
      </Loaded>
      {shown !== null && (
        <CallbackBody
          id={shown}
          onClose={() => {
            setOpened(null)
            if (linked) set({ id: null })
          }}
        />
      )}
      {bulk.asked && <BulkDialog action="replay" bulk={bulk} />}
    </>
  )
}
