import { useState } from 'preact/hooks'
import { useOperator } from '../api/operator.ts'
import { useAction, useList } from '../api/queries.ts'
import { Badge } from '../ui/badge.tsx'
import { Button } from '../ui/button.tsx'
import { CopyButton } from '../ui/copy-button.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { FilterBar, type FilterField } from '../ui/filter-bar.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { Time } from '../ui/time.tsx'
import { useUrlFilters } from '../ui/url-filters.ts'

interface Account {
  id: string
  name: string
  scopes: string[]
  key_hint: string | null
  expires_at: string | null
  revoked_at: string | null
  last_used_at: string | null
}

const FIELDS: readonly FilterField[] = [{ name: 'id', label: 'Id of an account or a key' }]

type Question = { kind: 'rotate' | 'revoke'; account: Account }
const SCOPES = ['read:projects', 'write:projects', 'read:users', 'write:users', 'read:operations', 'admin:*']

/** Service accounts and their keys. */
export function KeysPage() {
  const { operator } = useOperator()
  const { filters, set } = useUrlFilters(['id'])
  const accounts = useList<Account>('/v1/service-accounts', { query: { ...filters, limit: 50 } })
  const [isCreating, setCreating] = useState(false)
  const [question, setQuestion] = useState<Question | null>(null)
  const [key, setKey] = useState<string | null>(null)
  const showKey = ({ key: made }: { key: string | null }) => {
    setKey(made)
    setCreating(false)
    setQuestion(null)
    return made === null ? 'The answer with the key was lost. Rotate the key to get a new one.' : null
  }
  const rotate = useAction<{ key: string | null }>(showKey)
  const revoke = useAction(() => {
    setQuestion(null)
    return 'The key was revoked'
  })
  return (
    <>
      <PageHead title="Keys">
        {operator.mayAct && (
          <Button kind="primary" onClick={() => setCreating(true)}>
            New service account
          </Button>
        )}
      </PageHead>
      <FilterBar fields={FIELDS} values={filters} onChange={set} />
      <Loaded query={accounts}>
        <DataTable
          label="Service accounts"
          empty={filters.id ? 'No service account has this id or this key' : 'There is no service account yet'}
          rows={accounts.items}
          columns={[
            {
              title: 'Name',
              render: ({ id, name }) => (
                <>
                  <strong>{name}</strong> <code class="muted id">{id}</code>
                </>
              ),
            },
            { title: 'State', render: (account) => <Badge state={stateOf(account)} /> },
            { title: 'Scopes', render: ({ scopes }) => scopes.join(', ') || '–' },
            {
              title: 'Key',
              render: ({ key_hint }) => (key_hint === null ? '–' : <code>…{key_hint}</code>),
              wide: true,
            },
            { title: 'Last used', render: ({ last_used_at }) => <Time at={last_used_at} />, wide: true },
            ...(operator.mayAct
              ? [{ title: 'Actions', render: (account: Account) => <Actions account={account} ask={setQuestion} /> }]
              : []),
          ]}
          more={{
            has: accounts.hasNextPage,
            busy: accounts.isFetchingNextPage,
            load: () => void accounts.fetchNextPage(),
          }}
        />
      </Loaded>
      {isCreating && <CreateDialog onKey={showKey} onClose={() => setCreating(false)} />}
      {question?.kind === 'rotate' && (
        <Dialog
          title={`Rotate the key of ${question.account.name}?`}
          confirm={{
            label: 'Rotate',
            busy: rotate.isPending,
            onConfirm: () =>
              rotate.mutate({ method: 'POST', path: `/v1/service-accounts/${question.account.id}/rotate`, body: {} }),
          }}
          onClose={() => setQuestion(null)}
        >
          <p>The account gets a new key. The old key works for one more day.</p>
        </Dialog>
      )}
      {question?.kind === 'revoke' && (
        <Dialog
          title={`Revoke ${question.account.name}?`}
          confirm={{
            label: 'Revoke',
            kind: 'danger',
            busy: revoke.isPending,
            onConfirm: () => revoke.mutate({ method: 'DELETE', path: `/v1/service-accounts/${question.account.id}` }),
          }}
          onClose={() => setQuestion(null)}
        >
          <p>All keys of this account stop working within 30 seconds. This cannot be undone.</p>
        </Dialog>
      )}
      {key !== null && (
        <Dialog title="The new key" onClose={() => setKey(null)}>
          <p>Copy it now. The service keeps only a hash of it and cannot show it again.</p>
          <code class="id">{key}</code>
          <CopyButton label="Copy the key" text={() => key}>
            Copy the key
          </CopyButton>
        </Dialog>
      )}
    </>
  )
}

function Actions({ account, ask }: { account: Account; ask: (question: Question) => void }) {
  if (stateOf(account) !== 'active') return null
  return (
    <span class="actions">
      <Button kind="quiet" label={`Rotate the key of ${account.name}`} onClick={() => ask({ kind: 'rotate', account })}>
        Rotate
      </Button>
      <Button kind="quiet" label={`Revoke ${account.name}`} onClick={() => ask({ kind: 'revoke', account })}>
        Revoke
      </Button>
    </span>
  )
}

function CreateDialog(props: { onKey: (answer: { key: string | null }) => string | null; onClose: () => void }) {
  const [name, setName] = useState('')
  const [scopes, setScopes] = useState<readonly string[]>([])
  const create = useAction<{ key: string | null }>(props.onKey)
  const toggle = (scope: string) =>
    setScopes(scopes.includes(scope) ? scopes.filter((one) => one !== scope) : [...scopes, scope])
  return (
    <Dialog
      title="New service account"
      confirm={{
        label: 'Create',
        busy: create.isPending,
        onConfirm: () => create.mutate({ method: 'POST', path: '/v1/service-accounts', body: { name, scopes } }),
      }}
      onClose={props.onClose}
    >
      <label class="field">
        <span>Name</span>
        <input required maxLength={200} value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <fieldset class="stack">
        <legend>Scopes</legend>
        {SCOPES.map((scope) => (
          <label key={scope} class="actions">
            <input type="checkbox" checked={scopes.includes(scope)} onChange={() => toggle(scope)} />
            {scope}
          </label>
        ))}
      </fieldset>
    </Dialog>
  )
}

function stateOf({ revoked_at, expires_at }: Account): 'active' | 'revoked' | 'expired' {
  if (revoked_at !== null) return 'revoked'
  return expires_at !== null && Date.parse(expires_at) <= Date.now() ? 'expired' : 'active'
}
