import { Redirect } from 'wouter-preact'
import { useOperator } from '../api/operator.ts'
import { useResource } from '../api/queries.ts'
import type { JobRow } from '../api/types.ts'
import { PageHead } from '../ui/page-head.tsx'
import { Empty, Loaded } from '../ui/states.tsx'
import type { Person } from './people/people-page.tsx'

type Found = { data: JobRow[] }
const query = (name: string, id: string) => ({ query: { [name]: id, fields: 'summary', limit: 2 } })

/** Finds jobs by the id of a run, a thread, a trace or an owner, and a person without jobs by their id. */
export function FindPage({ params: { id } }: { params: { id: string } }) {
  const { operator } = useOperator()
  const byRun = useResource<Found>('/jobs', query('run_id', id))
  const byThread = useResource<Found>('/jobs', query('thread_id', id))
  const byTrace = useResource<Found>('/jobs', query('trace_id', id))
  const byOwner = useResource<Found>('/jobs', query('created_by', id))
  const bySub = useResource<{ data: Person[] }>('/v1/users', { query: { search: id }, enabled: operator.mayReadUsers })
  const [run] = byRun.data?.data ?? []
  if (run) return <Redirect to={`/jobs/${run.id}`} replace />
  const [turn, second] = byThread.data?.data ?? []
  if (turn) return <Redirect to={second ? `/jobs?thread_id=${id}` : `/jobs/${turn.id}`} replace />
  if (byTrace.data?.data.length) return <Redirect to={`/jobs?trace_id=${id}`} replace />
  if (bySub.data?.data.some(({ sub }) => sub === id)) return <Redirect to={`/people/${id}`} replace />
  if (byOwner.data?.data.length) {
    return <Redirect to={operator.mayReadUsers ? `/people/${id}` : `/jobs?created_by=${id}`} replace />
  }
  const all = [byRun, byThread, byTrace, byOwner, ...(operator.mayReadUsers ? [bySub] : [])]
  const lower = id.toLowerCase()
  if (id !== lower && all.every((one) => one.isSuccess)) return <Redirect to={`/find/${lower}`} replace />
  const pending = all.find((one) => one.isPending) ?? all.find((one) => one.error) ?? byRun
  const whose = operator.mayReadUsers ? 'or a person' : 'or an owner of jobs'
  return (
    <>
      <PageHead title="Find" />
      <Loaded query={pending}>
        <Empty title="Nothing has this id">
          {id} is not the id of a run, a thread, a trace {whose}.
        </Empty>
      </Loaded>
    </>
  )
}
