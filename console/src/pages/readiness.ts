import { useQuery } from '@tanstack/preact-query'

interface Readiness {
  status: 'ready' | 'not_ready'
  checks: Record<string, { state: string; detail: string | null }>
}

/** The state of each dependency. */
export function useReadiness() {
  return useQuery({ queryKey: ['/readyz'], queryFn: readReadiness, refetchInterval: 5_000 })
}

/** Reads `/readyz` without the client: a 503 has the same body and is not an error here. */
async function readReadiness({ signal }: { signal: AbortSignal }): Promise<Readiness> {
  return (await (await fetch('/readyz', { signal })).json()) as Readiness
}
