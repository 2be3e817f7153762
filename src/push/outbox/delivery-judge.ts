import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { Random } from '../../core/random.ts'
import type { DisableReason, PushVerdict } from '../push-message.ts'
import type { DeliveryMark, DeliveryNote, DeliveryState, DueDelivery } from './delivery-store.ts'
import { doubtUntil, endOfLife, giveUpAt, type Retrying, retryLater } from './delivery-times.ts'
import { DisableBreaker } from './disable-breaker.ts'
import type { Halt } from './halt.ts'
import { PlatformFaults } from './platform-faults.ts'

const MISMATCH =
  'the provider says that devices are of another project, and no message gets through: do the credentials fit the app?'

/** The provider's verdict, or why it was not even asked. */
export type AttemptOutcome = PushVerdict | 'expired' | 'gone'

export type MarkedDelivery = DeliveryMark & DeliveryNote

type Marker = (state: DeliveryState, rest?: Partial<MarkedDelivery>) => MarkedDelivery

export interface DeliveryJudgeOptions {
  clock: Clock
  random: Random
  log: Log
  halt: Halt
  onResumed: () => void
}

/** Decides what an attempt's outcome makes of its delivery, its device and everybody's; each answer is judged once. */
export class DeliveryJudge {
  readonly #options: DeliveryJudgeOptions
  readonly #disabling: DisableBreaker
  readonly #platforms: PlatformFaults

  constructor(options: DeliveryJudgeOptions) {
    this.#options = options
    this.#disabling = new DisableBreaker(options.clock)
    this.#platforms = new PlatformFaults(options.clock)
  }

  get deviceTrouble(): string | null {
    return this.#disabling.trouble
  }

  get platformTrouble(): string | null {
    return this.#platforms.trouble
  }

  markOf(attempt: { delivery: DueDelivery; verdict: AttemptOutcome; leaseToken: string }): MarkedDelivery {
    const { delivery, verdict, leaseToken } = attempt
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
      at: this.#options.clock.now(),
      doubt: null,
      disable_reason: null,
      seen_at: delivery.seen_at,
      ...rest,
    })
    if (verdict === 'expired') return mark('expired', { last_error: 'not delivered in time' })
    if (verdict === 'gone') return mark('disabled', { last_error: 'the device is gone' })
    this.#learn(delivery, verdict)
    switch (verdict.kind) {
      case 'sent':
        // A dry run has made no message.
        if (delivery.dry_run === 1) return mark('sent')
        return mark('sent', {
          provider_message_id: verdict.messageId,
          doubt: delivery.called_dead_at === null ? null : 'cleared',
        })
      case 'disable':
        return this.#markDead(delivery, { reason: verdict.reason, mark })
      case 'drop':
        if (verdict.alert) this.#options.log.error({ reason: verdict.reason }, 'delivery.dropped')
        return mark('failed', { last_error: verdict.reason })
      case 'retry':
        return this.#markFailure(retryLater(delivery, { ...this.#moment(), askedMs: verdict.afterMs }), {
          reason: verdict.reason,
          mark,
        })
      case 'halt':
        this.#options.halt.begin(verdict.reason, 'answer')
        return mark('pending', { last_error: verdict.reason, next_attempt_at: this.#options.halt.untilMs })
    }
  }

  /** What an answer says about more than its own delivery. */
  #learn({ dry_run, subject, platform }: DueDelivery, verdict: PushVerdict): void {
    const { kind } = verdict
    const isSent = kind === 'sent' && dry_run === 0
    if (kind === 'retry') this.#options.halt.prolong()
    else if (kind !== 'halt' && this.#options.halt.endBy(isSent ? 'sent' : 'answer')) this.#options.onResumed()
    if (isSent) {
      this.#disabling.noteSent(subject ?? '')
      if (platform) this.#platforms.clear(platform)
    }
    if (kind === 'disable' && dry_run === 0) this.#disabling.noteDead(subject ?? '')
    if (kind === 'drop' && verdict.alert && platform) this.#platforms.note(platform)
  }

  /** A device is disabled only when that is to be believed; until then its deliveries wait. */
  #markDead(delivery: DueDelivery, { reason, mark }: { reason: DisableReason; mark: Marker }): MarkedDelivery {
    if (delivery.dry_run === 1) return mark('failed', { last_error: reason })
    if (this.#disabling.believes(reason, delivery.called_dead_at)) {
      return mark('disabled', { last_error: reason, disable_reason: reason })
    }
    const { isProven, isSystemic } = this.#disabling
    if (reason === 'sender_mismatch' && isSystemic) this.#options.halt.begin(MISMATCH, 'sent')
    const lookAtMs = doubtUntil(delivery, this.#moment())
    const isTooLate = lookAtMs >= endOfLife(delivery)
    return mark(isTooLate ? 'expired' : 'pending', {
      last_error: `${reason}: not believed yet`,
      next_attempt_at: isTooLate ? null : lookAtMs,
      // Said by whom nothing gets through to, it says nothing of the device.
      doubt: isProven ? 'raised' : null,
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

  #moment(): { nowMs: number; random: Random } {
    return { nowMs: this.#options.clock.now(), random: this.#options.random }
  }
}
