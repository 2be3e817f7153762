const TONES: Readonly<Record<string, 'good' | 'bad' | 'wait' | 'live'>> = {
  completed: 'good',
  sent: 'good',
  applied: 'good',
  adopted: 'good',
  active: 'good',
  ok: 'good',
  failed: 'bad',
  expired: 'bad',
  blocked: 'bad',
  down: 'bad',
  awaiting_input: 'wait',
  deferred: 'wait',
  degraded: 'wait',
  no_credentials: 'wait',
  processing: 'live',
  generating: 'live',
}

/** A state as a word with a colour. The word is enough to understand it. */
export function Badge({ state }: { state: string }) {
  return <span class={`badge ${TONES[state] ?? ''}`}>{state.replaceAll('_', ' ')}</span>
}
