import type { Clock } from '../../core/clock.ts'
import type { Meter } from '../../core/metrics/meter.ts'
import type { PushMessage, PushSender, PushVerdict } from '../push-provider.ts'
import type { DueDelivery } from './delivery-store.ts'
import { expiresAt } from './delivery-times.ts'

/** The provider's verdict, or why the delivery was not sent at all. */
export type AttemptOutcome = PushVerdict | 'expired' | 'gone' | 'no_credentials'

interface AttemptContext {
  /** By the provider's name. */
  senders: ReadonlyMap<string, PushSender>
  clock: Clock
  meter: Meter
}

/** Never aborted: an attempt always finishes. One signal for all attempts, because each signal costs the sender a listener. */
const NEVER = new AbortController().signal

/** Makes one attempt, through the provider of the device. */
export async function attemptDelivery(
  { senders, clock, meter }: AttemptContext,
  delivery: DueDelivery,
): Promise<AttemptOutcome> {
  const { provider, token, disabled_at } = delivery
  if (provider === null || token === null || disabled_at !== null) return 'gone'
  const startedAtMs = clock.now()
  if (startedAtMs >= expiresAt(delivery)) return 'expired'
  const sender = senders.get(provider)
  if (sender === undefined) return 'no_credentials'
  const verdict = await sender.send(toMessage(delivery, { token, nowMs: startedAtMs }), NEVER)
  meter.observe('push_send_duration_seconds', (clock.now() - startedAtMs) / 1_000)
  return verdict
}

function toMessage(delivery: DueDelivery, { token, nowMs }: { token: string; nowMs: number }): PushMessage {
  const elapsedSeconds = Math.floor((nowMs - delivery.created_at) / 1000)
  return {
    token,
    title: delivery.title,
    body: delivery.body,
    data: JSON.parse(delivery.data) as Record<string, string>,
    tag: delivery.job_id ?? delivery.notification_id,
    link: delivery.link,
    priority: delivery.priority,
    ttlSeconds: Math.max(0, delivery.ttl_seconds - elapsedSeconds),
    dryRun: delivery.dry_run === 1,
  }
}
