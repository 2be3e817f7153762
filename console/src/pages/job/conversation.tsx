import { Link } from 'wouter-preact'
import { useResource } from '../../api/queries.ts'
import type { Job, JobRow } from '../../api/types.ts'
import { Badge } from '../../ui/badge.tsx'
import { Time } from '../../ui/time.tsx'

/** The turns of the conversation that the job is part of. */
export function Conversation({ job }: { job: Job }) {
  const { data } = useResource<{ data: JobRow[] }>('/jobs', {
    query: { thread_id: job.thread_id, fields: 'summary', limit: 50 },
  })
  const turns = [...(data?.data ?? [])].reverse()
  if (turns.length < 2) return null
  return (
    <section class="card" aria-label="Conversation">
      <h2>Conversation</h2>
      <ol class="turns">
        {turns.map(({ id, status, created_at }) => (
          <li key={id} aria-current={id === job.id ? 'true' : undefined}>
            <Link href={`/jobs/${id}`}>
              <code>{id}</code>
            </Link>{' '}
            <Badge state={status} /> <Time at={created_at} />
          </li>
        ))}
      </ol>
    </section>
  )
}
