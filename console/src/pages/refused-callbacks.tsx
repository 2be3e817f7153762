import { Link } from 'wouter-preact'
import { useList } from '../api/queries.ts'
import { DataTable } from '../ui/table.tsx'
import { Time } from '../ui/time.tsx'

interface RefusedCallback {
  id: string
  reason: string
  path: string
  address: string
  job_id: string | null
  count: number
  last_at: string
}

const RECENT_MS = 3_600_000

/** The callbacks that the service answered with an error, folded away unless they are recent. `id`: only this one. */
export function RefusedCallbacks({ id }: { id: string | undefined }) {
  const refused = useList<RefusedCallback>('/v1/refused-callbacks', { query: { id, limit: 10 }, refreshMs: 10_000 })
  const [newest] = refused.items
  if (refused.isPending) return null
  if (!newest) {
    return (
      <p class="muted">{id ? `No refused callback has the id ${id}.` : 'No callback was refused in the last week.'}</p>
    )
  }
  const isRecent = id !== undefined || Date.now() - Date.parse(newest.last_at) < RECENT_MS
  return (
    <section class="card" aria-label="Refused callbacks">
      <details open={isRecent}>
        <summary>
          <strong>Refused callbacks</strong>{' '}
          <span class="muted">
            last one <Time at={newest.last_at} />
          </span>
        </summary>
        <div class="stack">
          {id && (
            <p>
              Only <code>{id}</code> is shown. <Link href="/callbacks">Show all</Link>
            </p>
          )}
          <p>
            Their jobs end later, when the service asks the runtime. <strong>wrong token</strong>,{' '}
            <strong>wrong secret</strong> and <strong>wrong signature</strong> mean that the sender and the service have
            different secrets.
          </p>
          <DataTable
            label="Refused callbacks, newest first"
            empty="No callback was refused in the last week"
            rows={refused.items}
            columns={[
              { title: 'Reason', render: ({ reason }) => reason.replaceAll('_', ' ') },
              { title: 'Times', render: ({ count }) => count.toLocaleString(), numeric: true },
              { title: 'Path', render: ({ path }) => <code>{path}</code>, wide: true },
              { title: 'From', render: ({ address }) => <code>{address}</code> },
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
              { title: 'Last', render: ({ last_at }) => <Time at={last_at} /> },
            ]}
            more={{
              has: refused.hasNextPage,
              busy: refused.isFetchingNextPage,
              load: () => void refused.fetchNextPage(),
            }}
          />
        </div>
      </details>
    </section>
  )
}
