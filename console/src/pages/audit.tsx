import { useState } from 'preact/hooks'
import { useList } from '../api/queries.ts'
import { Button } from '../ui/button.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { FilterBar } from '../ui/filter-bar.tsx'
import { JsonView } from '../ui/json-view.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { Time } from '../ui/time.tsx'
import { useUrlFilters } from '../ui/url-filters.ts'

interface AuditEntry {
  id: string
  at: string
  actor: { kind: string; id: string }
  action: string
  object: { kind: string; id: string }
  before: unknown
  after: unknown
  address: string | null
  request_id: string | null
}

const FIELDS = [
  { name: 'actor', label: 'Who' },
  { name: 'action', label: 'Action' },
  { name: 'object', label: 'Object' },
]

/** The changes by admins and by the command line. */
export function AuditPage() {
  const { filters, set } = useUrlFilters(FIELDS.map(({ name }) => name))
  const entries = useList<AuditEntry>('/v1/audit', { query: { ...filters, limit: 50 } })
  const [shown, setShown] = useState<AuditEntry | null>(null)
  return (
    <>
      <PageHead title="Audit" />
      <FilterBar fields={FIELDS} values={filters} onChange={set} />
      <Loaded query={entries}>
        <DataTable
          label="Changes by operators, newest first"
          empty="No changes yet"
          rows={entries.items}
          columns={[
            { title: 'When', render: ({ at }) => <Time at={at} /> },
            { title: 'Action', render: ({ action }) => <strong>{action}</strong> },
            { title: 'Who', render: ({ actor }) => <span class="id">{actor.id}</span> },
            { title: 'Object', render: ({ object }) => <code class="id">{object.id}</code> },
            { title: 'From', render: ({ address }) => address ?? '–', wide: true },
            {
              title: 'Change',
              render: (entry) => (
                <Button kind="quiet" label={`Show ${entry.id}`} onClick={() => setShown(entry)}>
                  Show
                </Button>
              ),
            },
          ]}
          more={{
            has: entries.hasNextPage,
            busy: entries.isFetchingNextPage,
            load: () => void entries.fetchNextPage(),
          }}
        />
      </Loaded>
      {shown !== null && (
        <Dialog title={shown.action} onClose={() => setShown(null)}>
          <dl class="facts">
            <dt>Request</dt>
            <dd>{shown.request_id ?? '–'}</dd>
          </dl>
          <JsonView title="Before" value={shown.before} />
          <JsonView title="After" value={shown.after} />
        </Dialog>
      )}
    </>
  )
}
