import type { WebhookDelivery, WebhookEndpoint } from '@project-api/client'
import { useState } from 'preact/hooks'
import { useOperator } from '../../api/operator.ts'
import { useAction, useList } from '../../api/queries.ts'
import { Badge } from '../../ui/badge.tsx'
import { Button } from '../../ui/button.tsx'
import { Dialog } from '../../ui/dialog.tsx'
import { FilterBar, type FilterField } from '../../ui/filter-bar.tsx'
import { Loaded, useIsDeleted } from '../../ui/states.tsx'
import { DataTable } from '../../ui/table.tsx'
import { duration, Time } from '../../ui/time.tsx'
import { useUrlFilters } from '../../ui/url-filters.ts'

const FIELDS: readonly FilterField[] = [
  { name: 'state', label: 'State', choices: ['failed', 'expired'] },
  { name: 'event_id', label: 'Event' },
]

/** The deliveries to an endpoint, each with its last attempts. */
export function Deliveries({ endpoint }: { endpoint: WebhookEndpoint }) {
  const { operator } = useOperator()
  const { filters, set } = useUrlFilters(FIELDS.map(({ name }) => name))
  const deliveries = useList<WebhookDelivery>(`/v1/webhook-endpoints/${endpoint.id}/deliveries`, {
    query: { ...filters, limit: 50 },
    refreshMs: 2_000,
  })
  const [shown, setShown] = useState<string | null>(null)
  const opened = deliveries.items.find(({ id }) => id === shown)
  const resend = useAction(() => 'The event will be sent again')
  const isDeleted = useIsDeleted()
  // The service refuses it while the endpoint is disabled. A delivery that waits for its next attempt may be sent again now.
  const mayResend = operator.mayAct && endpoint.enabled && !isDeleted
  return (
    <section class="stack" aria-label="Deliveries">
      <h2>Deliveries</h2>
      <FilterBar fields={FIELDS} values={filters} onChange={set} />
      <Loaded query={deliveries}>
        <DataTable
          label="Deliveries, newest event first"
          empty={
            Object.keys(filters).length > 0
              ? 'No delivery fits these filters'
              : 'No event was queued for this endpoint yet'
          }
          rows={deliveries.items}
          columns={[
            { title: 'State', render: ({ state }) => <Badge state={state} /> },
            {
              title: 'Event',
              render: ({ event_type, event_id }) => (
                <span>
                  {event_type} <code class="muted id">{event_id}</code>
                </span>
              ),
            },
            { title: 'Error', render: ({ last_error }) => last_error ?? '–', wide: true },
            { title: 'Next attempt', render: ({ next_attempt_at }) => <Time at={next_attempt_at} />, wide: true },
            { title: 'Changed', render: ({ updated_at }) => <Time at={updated_at} /> },
            {
              title: 'Actions',
              render: (delivery) => (
                <span class="actions">
                  <Button
                    kind="quiet"
                    label={`${attemptsOf(delivery)} of ${delivery.event_type} ${delivery.event_id}`}
                    onClick={() => setShown(delivery.id)}
                  >
                    {attemptsOf(delivery)}
                  </Button>
                  {mayResend && (
                    <Button
                      kind="quiet"
                      busy={resend.isPending}
                      label={`Resend ${delivery.event_type} ${delivery.event_id}`}
                      onClick={() =>
                        resend.mutate({ method: 'POST', path: `/v1/webhook-deliveries/${delivery.id}/resend` })
                      }
                    >
                      Resend
                    </Button>
                  )}
                </span>
              ),
            },
          ]}
          more={{
            has: deliveries.hasNextPage,
            busy: deliveries.isFetchingNextPage,
            load: () => void deliveries.fetchNextPage(),
          }}
        />
      </Loaded>
      {opened && <Attempts delivery={opened} onClose={() => setShown(null)} />}
    </section>
  )
}

function attemptsOf({ log }: WebhookDelivery): string {
  return log.length === 1 ? '1 attempt' : `${log.length} attempts`
}

function Attempts({ delivery, onClose }: { delivery: WebhookDelivery; onClose: () => void }) {
  const { event_type, event_id, log, next_attempt_at } = delivery
  return (
    <Dialog title={`Attempts of ${event_type} ${event_id}`} onClose={onClose}>
      {next_attempt_at !== null && (
        <p>
          Next attempt: <Time at={next_attempt_at} />
        </p>
      )}
      {log.length === 0 && <p class="muted">There was no attempt yet.</p>}
      {log.toReversed().map(({ at, status, duration_ms, error, answer }) => (
        <section key={at} class="card" aria-label={`Attempt at ${at}`}>
          <dl class="facts">
            <dt>Time</dt>
            <dd>
              <Time at={at} isExact />
            </dd>
            <dt>Status</dt>
            <dd>{status ?? 'no answer'}</dd>
            <dt>Duration</dt>
            <dd>{duration(duration_ms)}</dd>
            {error !== null && (
              <>
                <dt>Error</dt>
                <dd class="problem">{error}</dd>
              </>
            )}
            <dt>Answer</dt>
            <dd>{answer === '' ? <span class="muted">empty</span> : <code class="prose">{answer}</code>}</dd>
          </dl>
        </section>
      ))}
    </Dialog>
  )
}
