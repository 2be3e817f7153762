import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { useOperator } from '../api/operator.ts'
import { useList } from '../api/queries.ts'
import { Button } from '../ui/button.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { FilterBar, type FilterField } from '../ui/filter-bar.tsx'
import { JsonView } from '../ui/json-view.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { Time } from '../ui/time.tsx'
import { useUrlFilters } from '../ui/url-filters.ts'
import { AUDIT_ACTIONS } from './audit-actions.ts'
import { pageOfId } from './page-of-id.ts'
import { Actor, Owner } from './people/owner.tsx'

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

const FIELDS: readonly FilterField[] = [
  { name: 'actor', label: 'Who' },
  { name: 'action', label: 'Action', choices: AUDIT_ACTIONS },
  { name: 'object', label: 'Object' },
  { name: 'operation_id', label: 'Bulk operation' },
  { name: 'request_id', label: 'Request' },
  { name: 'id', label: 'Entry' },
  { name: 'created_after', label: 'After', type: 'datetime-local' },
  { name: 'created_before', label: 'Before', type: 'datetime-local' },
]

/** The changes by admins and by the command line. */
export function AuditPage() {
  const { filters, set } = useUrlFilters(FIELDS.map(({ name }) => name))
  const entries = useList<AuditEntry>('/v1/audit', {
    // A bulk action is one line, unless the operator asks for its items, for one object or for one entry.
    query: {
      ...(filters.object || filters.operation_id || filters.id ? {} : { items: 'none' }),
      ...filters,
      limit: 50,
    },
  })
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
            { title: 'Who', render: ({ actor }) => <Actor kind={actor.kind} id={actor.id} /> },
            { title: 'Object', render: (entry) => <ChangedObject entry={entry} /> },
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
            <dt>Time</dt>
            <dd>
              <Time at={shown.at} isExact />
            </dd>
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

function ChangedObject({ entry: { object, action, after } }: { entry: AuditEntry }) {
  const { operator } = useOperator()
  const { kind, id } = object
  if (kind === 'user') return <Owner sub={id} />
  // The id of a conversation is that of its thread.
  const href = kind === 'conversation' ? `/jobs?thread_id=${id}` : pageOfId(id, operator)
  const { action: what, total } = (after ?? {}) as { action?: string; total?: number }
  return (
    <>
      {href === null ? <code class="id">{id}</code> : <Link href={href}>{id}</Link>}
      {action === 'operation.started' && total !== undefined && (
        <>
          {' '}
          {what} of {total.toLocaleString()}, <Link href={`/audit?operation_id=${id}`}>each change</Link>
        </>
      )}
    </>
  )
}
