import { Link } from 'wouter-preact'
import { useList } from '../../api/queries.ts'
import { Badge } from '../../ui/badge.tsx'
import { FilterBar, type FilterField } from '../../ui/filter-bar.tsx'
import { PageHead } from '../../ui/page-head.tsx'
import { Loaded } from '../../ui/states.tsx'
import { DataTable } from '../../ui/table.tsx'
import { Time } from '../../ui/time.tsx'
import { useUrlFilters } from '../../ui/url-filters.ts'

export interface Person {
  sub: string
  email: string | null
  display_name: string | null
  locale: string | null
  time_zone: string | null
  push_enabled: boolean
  created_at: string
  last_seen_at: string
  blocked_at: string | null
}

const FIELDS: readonly FilterField[] = [{ name: 'search', label: 'Sub or e-mail begins with' }]

export function PeoplePage() {
  const { filters, set } = useUrlFilters(['search'])
  const people = useList<Person>('/v1/users', { query: { ...filters, limit: 50 } })
  return (
    <>
      <PageHead title="People" />
      <FilterBar fields={FIELDS} values={filters} onChange={set} />
      <Loaded query={people}>
        <DataTable
          label={filters.search ? 'Users that match the search' : 'Users, newest first'}
          empty={
            filters.search ? 'No sub or e-mail address begins with this text' : 'No user has called the service yet'
          }
          rows={people.items.map((person) => ({ ...person, id: person.sub }))}
          href={({ id }) => `/people/${encodeURIComponent(id)}`}
          columns={[
            {
              title: 'User',
              render: ({ id, display_name, email }) => (
                <Link href={`/people/${encodeURIComponent(id)}`}>{display_name ?? email ?? id}</Link>
              ),
            },
            { title: 'Sub', render: ({ id }) => <code class="id">{id}</code> },
            { title: 'State', render: ({ blocked_at }) => (blocked_at ? <Badge state="blocked" /> : 'active') },
            { title: 'Last seen', render: ({ last_seen_at }) => <Time at={last_seen_at} /> },
          ]}
          more={{ has: people.hasNextPage, busy: people.isFetchingNextPage, load: () => void people.fetchNextPage() }}
        />
      </Loaded>
    </>
  )
}
