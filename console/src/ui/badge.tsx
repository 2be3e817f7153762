type Tone = 'good' | 'bad' | 'wait' | 'live'

const TONES: Readonly<Record<string, Tone>> = {
  completed: 'good',
  sent: 'good',
  applied: 'good',
  adopted: 'good',
  active: 'good',
  enabled: 'good',
  ok: 'good',
  failed: 'bad',
  expired: 'bad',
  blocked: 'bad',
  down: 'bad',
  awaiting_input: 'wait',
  deferred: 'wait',
  degraded: 'wait',
  failing: 'wait',
  no_credentials: 'wait',
  processing: 'live',
  generating: 'live',
}

/** A state as a word with a colour. The word is enough to understand it. */
export function Badge({ state, tone = TONES[state] }: { state: string; tone?: Tone | undefined }) {
  return <span class={`badge ${tone ?? ''}`}>{state.replaceAll('_', ' ')}</span>
}
