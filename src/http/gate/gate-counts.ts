import type { CounterLabels, Meter } from '../../core/metrics/meter.ts'
import type { Charge } from '../../limits/limiter.ts'
import type { TierName } from '../../limits/tiers.ts'
import type { GateDecision } from './decision.ts'

type CountedOutcome = Exclude<GateDecision['outcome'], 'awaits_body'>

/** Constants, because every request is counted: counting allocates nothing. */
const OUTCOMES: Readonly<Record<CountedOutcome, CounterLabels<'gate_outcomes_total'>>> = {
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

/** Counts each request once: a decision that awaits the body is counted when it is made. */
export function countDecision(meter: Meter, decision: GateDecision): void {
  if (decision.outcome === 'awaits_body') return
  meter.count('gate_outcomes_total', OUTCOMES[decision.outcome])
  if (decision.outcome === 'invalid') meter.count('credentials_refused_total', { reason: decision.reason })
}

export function countCharge(meter: Meter, { tier, exceeded }: Charge): void {
  meter.count('tier_charges_total', exceeded ? CHARGES[tier].exceeded : CHARGES[tier].within)
}

function chargesOf(tier: TierName): Record<'within' | 'exceeded', CounterLabels<'tier_charges_total'>> {
  return { within: { tier, exceeded: 'false' }, exceeded: { tier, exceeded: 'true' } }
}
