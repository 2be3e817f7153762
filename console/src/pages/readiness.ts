import { useQuery } from '@tanstack/preact-query'

interface Readiness {
  status: 'ready' | 'not_ready'
  checks: Record<string, { state: string; detail: string | null; since: string | null }>
}

/** Together they are below 5 s: so late an operator sees at most that the service hangs. */
const EVERY_MS = 2_000
const TIMEOUT_MS = 2_500

/** The state of each dependency. An error: the service does not answer. */
export function useReadiness() {
  return useQuery({ queryKey: ['/readyz'], queryFn: readReadiness, refetchInterval: EVERY_MS })
}

/** Reads `/readyz` without the client: a 503 has the same body and is not an error here. */
async function readReadiness({ signal }: { signal: AbortSignal }): Promise<Readiness> {
  const response = await fetch('/readyz', { signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]) })
  const answer = (await response.json()) as Partial<Readiness>
  if (!answer.checks) throw new Error('This is not an answer of the service')
  return answer as Readiness
}
