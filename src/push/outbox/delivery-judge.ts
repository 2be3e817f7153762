import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Random } from '../../core/random.ts'
import type { DeliveryPause } from '../../deliveries/delivery-pause.ts'
import type { PushVerdict } from '../push-provider.ts'
import type { AttemptOutcome } from './attempt-delivery.ts'
import type { DeliveryMark, DeliveryNote, DeliveryState, DueDelivery } from './delivery-store.ts'
import { expiresAt, giveUpAt, type Retrying, recheckAt, retryLater } from './delivery-times.ts'
import { DisableBreaker } from './disable-breaker.ts'
import { PlatformFaults } from './platform-faults.ts'

/** Messages for users about a delivery that was not sent. The provider's own message is only in the log. */
export const DELIVERY_ERRORS = {
  expired: 'not delivered in time',
  gone: 'the device was removed or disabled',
  refused: 'the push provider refused the message',
  no_platform_key: 'the push provider has no valid key for this platform',
  unavailable: 'the push provider did not accept the message',
  paused: 'push delivery is paused: the push provider does not accept the credentials',
} as const

export type MarkedDelivery = DeliveryMark & Omit<DeliveryNote, 'at'>

type Marker = (state: DeliveryState, rest?: Partial<MarkedDelivery>) => MarkedDelivery
type DisableVerdict = Extract<PushVerdict, { kind: 'disable' }>

interface DeliveryJudgeOptions {
  clock: Clock
  random: Random
  log: Log
  pause: DeliveryPause
  onResumed: () => void
}

/** Decides the effect of an outcome: on its delivery, on the device, and on all delivery. Call it once per outcome. */
export class DeliveryJudge {
  readonly #options: DeliveryJudgeOptions
  /** One per provider: a message delivered by one provider says nothing about the credentials of another. */
  readonly #breakers = new Map<string, DisableBreaker>()
  readonly #platforms: PlatformFaults

  constructor(options: DeliveryJudgeOptions) {
    this.#options = options
    this.#platforms = new PlatformFaults(options.clock)
  }

  get deviceFault(): string | null {
    for (const { fault } of this.#breakers.values()) if (fault !== null) return fault
    return null
  }

  get platformFault(): string | null {
    return this.#platforms.fault
  }

  markOf(attempt: { delivery: DueDelivery; outcome: AttemptOutcome; leaseToken: string }): MarkedDelivery {
    const { delivery, outcome, leaseToken } = attempt
    const mark: Marker = (state, rest = {}) => ({
      notification_id: delivery.notification_id,
      device_id: delivery.device_id,
      lease_token: leaseToken,
      job_id: delivery.job_id,
      attempts: delivery.attempts,
      state,
      next_attempt_at: null,
      provider_message_id: null,
      last_error: null,
      retrying_since: null,
      dead_report: null,
      disable_reason: null,
      seen_at: delivery.seen_at,
      ...rest,
    })
    if (outcome === 'expired') return mark('expired', { last_error: DELIVERY_ERRORS.expired })
    if (outcome === 'gone') return mark('disabled', { last_error: DELIVERY_ERRORS.gone })
    // Parked: it has no next attempt, so that it costs nothing while it waits. No attempt was made.
    if (outcome === 'no_credentials') return mark('no_credentials', { attempts: delivery.attempts - 1 })
    this.#learn(delivery, outcome)
    const about = { notificationId: delivery.notification_id, deviceId: delivery.device_id }
    switch (outcome.kind) {
      case 'sent':
        // A dry run creates no message.
        if (delivery.dry_run === 1) return mark('sent')
        return mark('sent', {
          provider_message_id: outcome.messageId,
          dead_report: delivery.called_dead_at === null ? null : 'forget',
        })
      case 'disable':
        return this.#markDead(delivery, { verdict: outcome, mark })
      case 'drop':
        this.#options.log[outcome.alert ? 'error' : 'warn']({ ...about, reason: outcome.reason }, 'delivery.dropped')
        return mark('failed', { last_error: DELIVERY_ERRORS[outcome.alert ? 'no_platform_key' : 'refused'] })
      case 'retry':
        this.#options.log.info({ ...about, reason: outcome.reason }, 'delivery.postponed')
        return this.#markFailure(retryLater(delivery, { ...this.#moment(), askedMs: outcome.afterMs }), {
          reason: DELIVERY_ERRORS.unavailable,
          mark,
        })
      case 'halt':
        this.#options.pause.begin(outcome.reason, 'answer')
        return mark('pending', { last_error: DELIVERY_ERRORS.paused, next_attempt_at: this.#options.pause.probeAtMs })
    }
  }

  /** Uses an answer for more than its own delivery: for the pause, the breaker and the platform faults. */
  #learn(delivery: DueDelivery, verdict: PushVerdict): void {
    const { pause, onResumed } = this.#options
    const { dry_run, subject, platform } = delivery
    const { kind } = verdict
    const isSent = kind === 'sent' && dry_run === 0
    if (kind === 'retry') pause.extend()
    else if (kind !== 'halt' && pause.endWith(isSent ? 'sent' : 'answer')) onResumed()
    if (isSent) {
      this.#breakerOf(delivery).recordSent(subject ?? '')
      if (platform) this.#platforms.clear(platform)
    }
    if (kind === 'disable' && dry_run === 0) this.#breakerOf(delivery).recordDead(subject ?? '')
    if (kind === 'drop' && verdict.alert && platform) this.#platforms.record(platform, verdict.reason)
  }

  /** Disables the device if the verdict can be trusted. Otherwise the delivery waits. */
  #markDead(delivery: DueDelivery, { verdict, mark }: { verdict: DisableVerdict; mark: Marker }): MarkedDelivery {
    const { reason, credentialsFault } = verdict
    if (delivery.dry_run === 1) return mark('failed', { last_error: reason })
    const breaker = this.#breakerOf(delivery)
    const report = { onlyAfterSuccess: credentialsFault !== null, firstReportedAtMs: delivery.called_dead_at }
    if (breaker.trusts(report)) return mark('disabled', { last_error: reason, disable_reason: reason })
    if (credentialsFault !== null && breaker.isSystemic) this.#options.pause.begin(credentialsFault, 'sent')
    const recheckAtMs = recheckAt(delivery, this.#moment())
    const isTooLate = recheckAtMs >= expiresAt(delivery)
    return mark(isTooLate ? 'expired' : 'pending', {
      last_error: `${reason}: not trusted yet`,
      next_attempt_at: isTooLate ? null : recheckAtMs,
      // While no message is delivered, a report says nothing about the device.
      dead_report: breaker.hasRecentSuccess ? 'keep' : null,
    })
  }

  #markFailure(delivery: Retrying, { reason, mark }: { reason: string; mark: Marker }): MarkedDelivery {
    const { retryAtMs, retrying_since } = delivery
    const isTooLate = retryAtMs >= giveUpAt(delivery)
    return mark(isTooLate ? 'expired' : 'pending', {
      last_error: reason,
      next_attempt_at: isTooLate ? null : retryAtMs,
      retrying_since,
    })
  }

  #breakerOf({ provider }: DueDelivery): DisableBreaker {
    const name = provider ?? ''
    const breaker = this.#breakers.get(name) ?? new DisableBreaker(this.#options.clock)
    this.#breakers.set(name, breaker)
    return breaker
  }

  #moment(): { nowMs: number; random: Random } {
    return { nowMs: this.#options.clock.now(), random: this.#options.random }
  }
}
