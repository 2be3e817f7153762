/** The settings that the service returns before sign-in: see `consolePages` in the service. */
export interface ConsoleSettings {
  issuerUrl: string
  clientId: string | null
  authUrl: string | null
  dev: { user: string; links: Record<string, string> } | null
}

export async function loadSettings(): Promise<ConsoleSettings> {
  const response = await fetch('/console/settings.json', { signal: AbortSignal.timeout(10_000) })
  if (!response.ok) throw new Error(`The service answered ${response.status}`)
  return (await response.json()) as ConsoleSettings
}
