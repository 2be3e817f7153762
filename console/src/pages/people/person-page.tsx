import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { useOperator } from '../../api/operator.ts'
import { useAction, useList, useResource } from '../../api/queries.ts'
import type { JobRow } from '../../api/types.ts'
import { Badge } from '../../ui/badge.tsx'
import { Button } from '../../ui/button.tsx'
import { Dialog } from '../../ui/dialog.tsx'
import { PageHead } from '../../ui/page-head.tsx'
import { Loaded } from '../../ui/states.tsx'
import { DataTable } from '../../ui/table.tsx'
import { Time } from '../../ui/time.tsx'
import { useToast } from '../../ui/toasts.tsx'
import { OperationProgress } from '../jobs/operation.tsx'
import { EraseAction } from './erase-action.tsx'
import { LimitsAction, type UsageView, Used } from './limits-action.tsx'
import type { Person } from './people-page.tsx'

interface DeviceView {
  id: string
  platform: string
  token: string
  last_seen_at: string
  disabled_at: string | null
}

export function PersonPage({ params }: { params: { sub: string } }) {
  const sub = decodeURIComponent(params.sub)
  const [erasure, setErasure] = useState<string | null>(null)
  return erasure === null ? (
    <PersonDetails sub={sub} onErase={setErasure} />
  ) : (
    <>
      <PageHead title="Erasing a user" />
      <OperationProgress id={erasure} />
      <p>
        <code>{sub}</code> cannot call the service until the erasure is done. The erasure continues if you leave this
        page.
      </p>
      <Link href="/people">All people</Link>
    </>
  )
}

function PersonDetails({ sub, onErase }: { sub: string; onErase: (operationId: string) => void }) {
  const path = `/v1/users/${encodeURIComponent(sub)}`
  const person = useResource<Person>(path)
  const usage = useResource<UsageView>(`${path}/usage`)
  const devices = useList<DeviceView>(`${path}/devices`)
  const jobs = useList<JobRow>('/jobs', { query: { created_by: sub, fields: 'summary', limit: 20 } })
  const { data } = person
  return (
    <>
      <PageHead title={data?.display_name ?? data?.email ?? sub}>
        <PersonActions
          sub={sub}
          path={path}
          isBlocked={Boolean(data?.blocked_at)}
          usage={usage.data}
          onErase={onErase}
        />
      </PageHead>
      <Loaded query={person}>
        {data && (
          <section class="card" aria-label="Profile">
            <dl class="facts">
              <dt>Sub</dt>
              <dd>
                <code>{data.sub}</code> {data.blocked_at && <Badge state="blocked" />}
              </dd>
              <dt>Email</dt>
              <dd>{data.email ?? '–'}</dd>
              <dt>First seen</dt>
              <dd>
                <Time at={data.created_at} isExact />
              </dd>
              <dt>Last seen</dt>
              <dd>
                <Time at={data.last_seen_at} isExact />
              </dd>
              <dt>Push</dt>
              <dd>{data.push_enabled ? 'on' : 'off'}</dd>
              <dt>Runs this month</dt>
              <dd>
                <Used amount={usage.data?.runs} limit={usage.data?.limit} />
              </dd>
              <dt>Tokens this month</dt>
              <dd>
                <Used amount={usage.data?.tokens.total} limit={usage.data?.limit_tokens} />
              </dd>
            </dl>
          </section>
        )}
      </Loaded>
      <h2>Jobs</h2>
      <Loaded query={jobs}>
        <DataTable
          label="Jobs of this user"
          empty="This user has no job"
          rows={jobs.items}
          href={({ id }) => `/jobs/${id}`}
          columns={[
            { title: 'Status', render: ({ status }) => <Badge state={status} /> },
            {
              title: 'Job',
              render: ({ id, type }) => (
                <Link href={`/jobs/${id}`}>
                  {type} <code class="id">{id}</code>
                </Link>
              ),
            },
            { title: 'Created', render: ({ created_at }) => <Time at={created_at} /> },
          ]}
          more={{ has: jobs.hasNextPage, busy: jobs.isFetchingNextPage, load: () => void jobs.fetchNextPage() }}
        />
      </Loaded>
      <h2>Devices</h2>
      <Loaded query={devices}>
        <DataTable
          label="Devices of this user"
          empty="This user has no device"
          rows={devices.items}
          columns={[
            { title: 'Platform', render: ({ platform }) => platform },
            { title: 'Token', render: ({ token }) => <code>{token}</code> },
            { title: 'State', render: ({ disabled_at }) => <Badge state={disabled_at ? 'disabled' : 'active'} /> },
            { title: 'Last seen', render: ({ last_seen_at }) => <Time at={last_seen_at} /> },
          ]}
          more={{
            has: devices.hasNextPage,
            busy: devices.isFetchingNextPage,
            load: () => void devices.fetchNextPage(),
          }}
        />
      </Loaded>
    </>
  )
}

interface PersonActionsProps {
  sub: string
  path: string
  isBlocked: boolean
  usage: UsageView | undefined
  onErase: (operationId: string) => void
}

function PersonActions({ sub, path, isBlocked, usage, onErase }: PersonActionsProps) {
  const { api, operator } = useOperator()
  const toast = useToast()
  const [isAsked, setAsked] = useState(false)
  const close = () => setAsked(false)
  const block = useAction(() => {
    close()
    return isBlocked ? 'The user may sign in again' : 'The user is blocked'
  })
  if (!operator.mayAct) return null
  const download = async () => {
    try {
      const document = await api.request('GET', `${path}/export`)
      const url = URL.createObjectURL(new Blob([JSON.stringify(document, null, 2)], { type: 'application/json' }))
      const link = Object.assign(window.document.createElement('a'), { href: url, download: `${sub}.json` })
      link.click()
      URL.revokeObjectURL(url)
    } catch (error) {
      toast({ kind: 'bad', message: error instanceof Error ? error.message : String(error) })
    }
  }
  return (
    <>
      <Button onClick={() => void download()}>Export</Button>
      {usage && <LimitsAction path={path} own={usage.own_limits} />}
      <Button onClick={() => setAsked(true)}>{isBlocked ? 'Unblock' : 'Block'}</Button>
      <EraseAction sub={sub} path={path} onStarted={onErase} />
      {isAsked && (
        <Dialog
          title={isBlocked ? 'Unblock this user?' : 'Block this user?'}
          confirm={{
            label: isBlocked ? 'Unblock' : 'Block',
            kind: isBlocked ? 'primary' : 'danger',
            busy: block.isPending,
            onConfirm: () => block.mutate({ method: 'POST', path: `${path}/${isBlocked ? 'unblock' : 'block'}` }),
          }}
          onClose={close}
        >
          <p>
            {isBlocked
              ? 'The user can call the service again within five seconds.'
              : 'Every request of the user is refused within five seconds, and open streams end. Running jobs continue.'}
          </p>
        </Dialog>
      )}
    </>
  )
}
