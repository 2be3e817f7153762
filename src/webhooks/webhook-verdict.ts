import type { Random } from '../core/random.ts'
import { asStorableText } from '../core/text.ts'
import { readRetryAfter } from '../deliveries/retry-after.ts'
import type { EgressAnswer } from '../egress/egress-port.ts'
import type { WebhookState } from './delivery-store.ts'
import type { EndpointEffect } from './endpoint-store.ts'

const SECOND_MS = 1_000
const MINUTE_MS = 60 * SECOND_MS
const HOUR_MS = 60 * MINUTE_MS
/** The pauses between the attempts. After the last one the delivery has failed. */
const PAUSES_MS = [
  5 * SECOND_MS,
  5 * MINUTE_MS,
  30 * MINUTE_MS,
  2 * HOUR_MS,
  5 * HOUR_MS,
  10 * HOUR_MS,
  10 * HOUR_MS,
] as const
/** Each pause is longer by up to this share, so that the deliveries of an outage do not come back all at once. */
const JITTER = 0.1
/** The longest pause that a receiver may request. */
const MAX_ASKED_MS = 24 * HOUR_MS
const MAX_LOGGED = 8
const MAX_ANSWER_CHARS = 1024

/** One attempt as operators see it. */
export interface LoggedAttempt {
  at: number
  /** Null if there was no answer. */
  status: number | null
  duration_ms: number
  error: string | null
  /** The beginning of the answer. */
  answer: string
}

interface WebhookVerdict {
  state: WebhookState
  next_attempt_at: number | null
  last_error: string | null
  effect: EndpointEffect
}

/** Decides what the answer means, or its absence, which `error` explains. */
export function judgeWebhook(
  { answer, error }: { answer: EgressAnswer | null; error: string | null },
  delivery: { attempts: number; isTest: boolean },
  { nowMs, calendarMs, random }: { nowMs: number; calendarMs: number; random: Random },
): WebhookVerdict {
  const status = answer?.status ?? 0
  if (status >= 200 && status < 300) {
    return { state: 'sent', next_attempt_at: null, last_error: null, effect: 'succeeded' }
  }
  const last_error = error ?? `the receiver answered ${status}`
  if (status === 410) return { state: 'failed', next_attempt_at: null, last_error, effect: 'gone' }
  const pauseMs = PAUSES_MS[delivery.attempts - 1]
  // The operator waits for the result of a test, and repeats it.
  if (delivery.isTest) return { state: 'failed', next_attempt_at: null, last_error, effect: null }
  if (pauseMs === undefined) return { state: 'failed', next_attempt_at: null, last_error, effect: 'failed' }
  const ownMs = Math.round(pauseMs * (1 + JITTER * random.fraction()))
  const askedMs = readRetryAfter(answer?.retryAfter, calendarMs, MAX_ASKED_MS) ?? 0
  return { state: 'pending', next_attempt_at: nowMs + Math.max(ownMs, askedMs), last_error, effect: 'failed' }
}

/** Adds an attempt to the stored log, of which the last ones are kept. */
export function addAttempt(log: string, attempt: LoggedAttempt): string {
  const earlier = JSON.parse(log) as LoggedAttempt[]
  const answer = asStorableText(attempt.answer, MAX_ANSWER_CHARS)
  return JSON.stringify([...earlier, { ...attempt, answer }].slice(-MAX_LOGGED))
}
