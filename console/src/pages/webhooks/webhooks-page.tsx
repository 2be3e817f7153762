import type { WebhookEndpoint } from '@project-api/client'
import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { useOperator } from '../../api/operator.ts'
import { type Page, useResource } from '../../api/queries.ts'
import { Button } from '../../ui/button.tsx'
import { PageHead } from '../../ui/page-head.tsx'
import { Loaded } from '../../ui/states.tsx'
import { DataTable } from '../../ui/table.tsx'
import { CreateDialog } from './endpoint-form.tsx'
import { Backlog, Health } from './health.tsx'
import { SecretDialog } from './secret-dialog.tsx'

/** The backends that get events, and how their deliveries go. */
export function WebhooksPage() {
  const { operator } = useOperator()
  const endpoints = useResource<Page<WebhookEndpoint>>('/v1/webhook-endpoints', { refreshMs: 5_000 })
  const [isCreating, setCreating] = useState(false)
  const [secret, setSecret] = useState<string | null>(null)
  return (
    <>
      <PageHead title="Webhooks">
        {operator.mayAct && (
          <Button kind="primary" onClick={() => setCreating(true)}>
            New endpoint
          </Button>
        )}
      </PageHead>
      <Loaded query={endpoints}>
        <DataTable
          label="Webhook endpoints, newest first"
          empty="There is no webhook endpoint yet"
          rows={endpoints.data?.data ?? []}
          href={({ id }) => `/webhooks/${id}`}
          columns={[
            {
              title: 'Endpoint',
              render: ({ id, url, description }) => (
                <>
                  <Link href={`/webhooks/${id}`} class="id">
                    {url}
                  </Link>
                  {description && <div class="muted id">{description}</div>}
                </>
              ),
            },
            { title: 'Health', render: (endpoint) => <Health endpoint={endpoint} /> },
            { title: 'Backlog', render: (endpoint) => <Backlog endpoint={endpoint} /> },
            { title: 'Events', render: ({ events }) => events.join(', ') },
          ]}
        />
      </Loaded>
      {isCreating && (
        <CreateDialog
          onClose={() => setCreating(false)}
          onCreated={(created) => {
            setCreating(false)
            setSecret(created)
          }}
        />
      )}
      {secret !== null && <SecretDialog secret={secret} onClose={() => setSecret(null)} />}
    </>
  )
}
