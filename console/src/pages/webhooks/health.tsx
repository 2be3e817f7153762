import type { WebhookEndpoint } from '@project-api/client'
import { Badge } from '../../ui/badge.tsx'
import { Elapsed, Time } from '../../ui/time.tsx'

type Reason = NonNullable<WebhookEndpoint['disabled_reason']>

const REASONS: Record<Reason, string> = {
  admin: 'by an admin',
  gone: 'because it answered 410',
  failing: 'because every attempt failed for five days',
}

/** Whether an endpoint gets events; if not, why and since when. */
export function Health({ endpoint }: { endpoint: WebhookEndpoint }) {
  const { disabled_at, disabled_reason, failing_since } = endpoint
  if (disabled_at !== null) {
    return (
      <>
        <Badge state="disabled" tone={disabled_reason === 'admin' ? 'wait' : 'bad'} />{' '}
        <span class="muted">
          {disabled_reason && REASONS[disabled_reason]}, <Time at={disabled_at} />
        </span>
      </>
    )
  }
  if (failing_since === null) return <Badge state="enabled" />
  return (
    <>
      <Badge state="failing" />{' '}
      <span class="muted">
        for <Elapsed since={failing_since} />
      </span>
    </>
  )
}

/** The service counts no further than this. */
const MAX_COUNTED = 1_000

export function Backlog({ endpoint: { waiting, missed_events } }: { endpoint: WebhookEndpoint }) {
  const text = waiting > MAX_COUNTED ? `more than ${MAX_COUNTED.toLocaleString()}` : waiting.toLocaleString()
  return (
    <>
      {text}
      {'\u00a0'}waiting
      {missed_events > 0 && <span class="problem">, up to {missed_events.toLocaleString()} events missed</span>}
    </>
  )
}
