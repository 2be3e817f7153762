import type { FastifyRequest } from 'fastify'
import { tokenFaultReason } from '../../auth/token-fault.ts'
import { ApiError } from '../../core/errors.ts'
import type { CounterLabels, Meter } from '../../core/metrics/meter.ts'
import type { Charge } from '../../limits/limiter.ts'
import type { TierName } from '../../limits/tiers.ts'

type Outcome = 'public' | 'ok' | 'missing' | 'invalid' | 'spent' | 'forbidden' | 'unavailable'

/** Made once: every request passes here. */
const OUTCOMES: Readonly<Record<Outcome, CounterLabels<'gate_outcomes_total'>>> = {
  public: { outcome: 'public' },
  ok: { outcome: 'ok' },
  missing: { outcome: 'missing' },
  invalid: { outcome: 'invalid' },
  spent: { outcome: 'spent' },
  forbidden: { outcome: 'forbidden' },
  unavailable: { outcome: 'unavailable' },
}

const CHARGES: Readonly<Record<TierName, Record<'within' | 'exceeded', CounterLabels<'tier_charges_total'>>>> = {
  unauthenticated: chargesOf('unauthenticated'),
  authenticated: chargesOf('authenticated'),
  service: chargesOf('service'),
}

/** Tells the meter what the gate decided of a request, once; `refusal` is what it throws, if anything. */
export function countAdmission(meter: Meter, request: FastifyRequest, refusal: unknown): void {
  // Let through for its body alone: that is judged later, and counted then.
  if (refusal === undefined && request.callbackProof?.authentic === false) return
  const outcome = outcomeOf(request, refusal)
  meter.count('gate_outcomes_total', OUTCOMES[outcome])
  if (outcome === 'invalid') meter.count('credentials_refused_total', { reason: reasonOf(request, refusal) })
}

export function countCharge(meter: Meter, { tier, exceeded }: Charge): void {
  meter.count('tier_charges_total', exceeded ? CHARGES[tier].exceeded : CHARGES[tier].within)
}

function outcomeOf(request: FastifyRequest, refusal: unknown): Outcome {
  if (refusal === undefined) return request.principal === null && request.callbackProof === null ? 'public' : 'ok'
  if (!(refusal instanceof ApiError)) return 'unavailable'
  if (refusal.code === 'rate_limit_exceeded') return 'spent'
  if (refusal.code === 'forbidden') return 'forbidden'
  if (refusal.code !== 'unauthorized') return 'unavailable'
  // RFC 6750: who showed no credential is told of no error.
  const showedNone = refusal.headers['www-authenticate'] === 'Bearer' && request.callbackProof === null
  return showedNone ? 'missing' : 'invalid'
}

function reasonOf(request: FastifyRequest, refusal: unknown): string {
  if (request.callbackProof !== null) return 'callback'
  const fault = tokenFaultReason(refusal)
  return fault ?? (request.headers['x-api-key'] === undefined ? 'header' : 'api_key')
}

function chargesOf(tier: TierName): Record<'within' | 'exceeded', CounterLabels<'tier_charges_total'>> {
  return { within: { tier, exceeded: 'false' }, exceeded: { tier, exceeded: 'true' } }
}
