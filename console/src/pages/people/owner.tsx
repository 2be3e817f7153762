import { Link } from 'wouter-preact'
import { useOperator } from '../../api/operator.ts'
import { useResource } from '../../api/queries.ts'
import type { Person } from './people-page.tsx'

/** The owner of what a command on the machine of the service created. */
const COMMAND_LINE = 'command_line'

/** A user by e-mail address, with a link to the page of the user. Without `read:users`: the id, with a link to the jobs. */
export function Owner({ sub }: { sub: string | null }) {
  const { operator } = useOperator()
  const isUser = sub !== null && sub !== COMMAND_LINE && !sub.startsWith('svc_')
  // A search finds a user or nothing. A read of one that never signed in would be an error.
  const found = useResource<{ data: Person[] }>('/v1/users', {
    query: { search: sub, limit: 1 },
    enabled: operator.mayReadUsers && isUser,
    staleMs: 5 * 60_000,
  })
  if (sub === null) return <>–</>
  const person = found.data?.data.find((one) => one.sub === sub)
  const isKnown = isUser && operator.mayReadUsers
  const href = isKnown ? `/people/${encodeURIComponent(sub)}` : `/jobs?created_by=${encodeURIComponent(sub)}`
  return (
    <Link href={href} class="id" title={sub}>
      {sub === COMMAND_LINE ? 'command line' : person?.email ? <Email address={person.email} /> : sub}
    </Link>
  )
}

/** A long address wraps behind its @. */
function Email({ address }: { address: string }) {
  const at = address.indexOf('@') + 1
  return (
    <>
      {address.slice(0, at)}
      <wbr />
      {address.slice(at)}
    </>
  )
}

/** Who made a change. On the command line that is the name of a user of the machine, who has no page. */
export function Actor({ kind, id }: { kind: string; id: string }) {
  return kind === COMMAND_LINE ? <span class="id">command line ({id})</span> : <Owner sub={id} />
}
