import type { WebhookEndpoint } from '@project-api/client'
import { useState } from 'preact/hooks'
import { useOperator } from '../../api/operator.ts'
import { useResource } from '../../api/queries.ts'
import { PageHead } from '../../ui/page-head.tsx'
import { Loaded } from '../../ui/states.tsx'
import { Time } from '../../ui/time.tsx'
import { OperationProgress } from '../jobs/operation.tsx'
import { Owner } from '../people/owner.tsx'
import { Deliveries } from './deliveries.tsx'
import { EndpointActions } from './endpoint-actions.tsx'
import { Backlog, Health } from './health.tsx'

/** One webhook endpoint with its deliveries. */
export function EndpointPage({ params: { id } }: { params: { id: string } }) {
  const { operator } = useOperator()
  const query = useResource<WebhookEndpoint>(`/v1/webhook-endpoints/${id}`, { refreshMs: 2_000 })
  const [recovery, setRecovery] = useState<string | null>(null)
  const endpoint = query.data
  return (
    <Loaded query={query}>
      {endpoint && (
        <>
          <PageHead title="Webhook endpoint">
            {operator.mayAct && <EndpointActions endpoint={endpoint} onRecovery={setRecovery} />}
          </PageHead>
          {recovery !== null && <OperationProgress id={recovery} />}
          <Facts endpoint={endpoint} />
          <Deliveries endpoint={endpoint} />
        </>
      )}
    </Loaded>
  )
}

function Facts({ endpoint }: { endpoint: WebhookEndpoint }) {
  const { types, project_id, description, created_by, previous_secret_until: until } = endpoint
  return (
    <section class="card" aria-label="Facts">
      <dl class="facts">
        <dt>URL</dt>
        <dd>
          <code>{endpoint.url}</code>
        </dd>
        <dt>Description</dt>
        <dd>{description ?? '–'}</dd>
        <dt>Health</dt>
        <dd>
          <Health endpoint={endpoint} />
        </dd>
        <dt>Backlog</dt>
        <dd>
          <Backlog endpoint={endpoint} />
        </dd>
        <dt>Events</dt>
        <dd>{endpoint.events.join(', ')}</dd>
        <dt>Job types</dt>
        <dd>{types?.join(', ') ?? 'all'}</dd>
        <dt>Project</dt>
        <dd>{project_id === null ? 'all' : <code>{project_id}</code>}</dd>
        {until !== null && Date.parse(until) > Date.now() && (
          <>
            <dt>Old secret</dt>
            <dd>
              expires <Time at={until} />
            </dd>
          </>
        )}
        <dt>Created</dt>
        <dd>
          <Time at={endpoint.created_at} isExact />
          {created_by && (
            <>
              {' by '}
              <Owner sub={created_by} />
            </>
          )}
        </dd>
        <dt>Changed</dt>
        <dd>
          <Time at={endpoint.updated_at} isExact />
        </dd>
        <dt>Id</dt>
        <dd>
          <code>{endpoint.id}</code>
        </dd>
      </dl>
    </section>
  )
}
