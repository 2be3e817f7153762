import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { useOperator } from '../api/operator.ts'
import { useAction, useList, useResource } from '../api/queries.ts'
import { Badge } from '../ui/badge.tsx'
import { Button } from '../ui/button.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { FilterBar, type FilterField } from '../ui/filter-bar.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { Time } from '../ui/time.tsx'
import { useUrlFilters } from '../ui/url-filters.ts'
import type { DeliveryRow } from './job/job-pushes.tsx'
import { Owner } from './people/owner.tsx'

const FIELDS: readonly FilterField[] = [
  {
    name: 'state',
    label: 'State',
    choices: ['pending', 'sent', 'failed', 'disabled', 'expired', 'no_credentials'],
  },
  { name: 'user', label: 'User' },
  { name: 'job', label: 'Job' },
  { name: 'notification', label: 'Notification' },
  { name: 'device', label: 'Device' },
]

const MEANING: Record<string, string> = {
  halted: 'Delivery is halted, and messages wait',
  dropping: 'Some messages are lost, and the others are delivered',
  holding: 'Devices that the provider reports as dead are kept',
  no_credentials: 'Messages wait for credentials',
}

/** Deliveries to devices, and the reason if delivery is paused. */
export function PushPage() {
  const { operator } = useOperator()
  const { filters, set } = useUrlFilters(FIELDS.map(({ name }) => name))
  const deliveries = useList<DeliveryRow>('/v1/deliveries', { query: { ...filters, limit: 50 }, refreshMs: 5_000 })
  const [isTesting, setTesting] = useState(false)
  const resend = useAction(() => 'The message will be sent again')
  const push = useResource<{ state: string; reason: string | null }>('/v1/push', { refreshMs: 5_000 }).data
  return (
    <>
      <PageHead title="Push">
        {operator.mayAct && <Button onClick={() => setTesting(true)}>Send a test</Button>}
      </PageHead>
      {push && push.state !== 'ok' && (
        <p class="notice bad">
          <strong>{MEANING[push.state] ?? push.state}</strong>
          {push.reason && `: ${push.reason}`}
        </p>
      )}
      <FilterBar fields={FIELDS} values={filters} onChange={set} />
      <Loaded query={deliveries}>
        <DataTable
          label="Deliveries, newest first"
          empty={Object.keys(filters).length > 0 ? 'No delivery fits these filters' : 'Nothing was pushed yet'}
          rows={deliveries.items}
          columns={[
            { title: 'State', render: ({ state }) => <Badge state={state} /> },
            {
              title: 'User',
              render: ({ user, platform }) => (
                <>
                  {user === null ? 'deleted device' : <Owner sub={user} />} {platform}
                </>
              ),
            },
            {
              title: 'Job',
              wide: true,
              render: ({ job_id }) =>
                job_id === null ? (
                  '–'
                ) : (
                  <Link href={`/jobs/${job_id}`}>
                    <code class="id">{job_id}</code>
                  </Link>
                ),
            },
            { title: 'Error', render: ({ last_error }) => last_error ?? '–' },
            { title: 'Attempts', render: ({ attempts }) => attempts, wide: true, numeric: true },
            { title: 'Changed', render: ({ updated_at }) => <Time at={updated_at} /> },
            ...(operator.mayAct
              ? [
                  {
                    title: 'Actions',
                    render: ({ id, state }: DeliveryRow) =>
                      state === 'failed' || state === 'expired' ? (
                        <Button
                          kind="quiet"
                          busy={resend.isPending}
                          label={`Resend ${id}`}
                          onClick={() => resend.mutate({ method: 'POST', path: `/v1/deliveries/${id}/resend` })}
                        >
                          Resend
                        </Button>
                      ) : null,
                  },
                ]
              : []),
          ]}
          more={{
            has: deliveries.hasNextPage,
            busy: deliveries.isFetchingNextPage,
            load: () => void deliveries.fetchNextPage(),
          }}
        />
      </Loaded>
      {isTesting && <TestDialog onClose={() => setTesting(false)} />}
    </>
  )
}

function TestDialog({ onClose }: { onClose: () => void }) {
  const [user, setUser] = useState('')
  const [isDry, setDry] = useState(true)
  const send = useAction<{ id: string }>(({ id }) => {
    onClose()
    return `The test is on its way: ${id}`
  })
  const body = { users: [user.trim()], title: 'A test', body: 'Sent from the console.', dry_run: isDry }
  return (
    <Dialog
      title="Send a test"
      confirm={{
        label: isDry ? 'Check' : 'Send',
        busy: send.isPending,
        onConfirm: () => send.mutate({ method: 'POST', path: '/v1/notifications', body }),
      }}
      onClose={onClose}
    >
      <label class="field">
        <span>User (sub)</span>
        <input required value={user} onInput={(event) => setUser(event.currentTarget.value)} />
      </label>
      <label class="actions">
        <input type="checkbox" checked={isDry} onChange={(event) => setDry(event.currentTarget.checked)} />
        Dry run: the provider checks the message and delivers nothing
      </label>
    </Dialog>
  )
}
