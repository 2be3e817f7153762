import type { IdentityProvider } from '../../sandbox/identity-provider/identity-provider.ts'

const SEEDS = [
  { name: 'Website relaunch', description: 'Copy, pictures, a new start page' },
  { name: 'Quarterly report', description: 'Numbers for the board', metadata: { team: 'finance' } },
  { name: 'Support bot', description: 'Answers what the handbook knows' },
]

/** On a busy machine the first request waits for everything that a start loads. */
const ANSWER_TIMEOUT_MS = 60_000

/** Creates the first projects through the API, unless there are some: the database may outlive this process. */
export async function seedProjects(url: string, identity: IdentityProvider): Promise<void> {
  const token = identity.mint({ user: 'ada', expiresInSeconds: 60 })
  const ask = async (method: string, body?: object): Promise<{ data?: unknown[] }> => {
    const response = await fetch(`${url}/v1/projects`, {
      method,
      headers: { authorization: `Bearer ${token}`, ...(body && { 'content-type': 'application/json' }) },
      ...(body && { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS),
    })
    const text = await response.text()
    if (!response.ok) throw new Error(`Seeding failed: ${response.status} ${text}`)
    return JSON.parse(text) as { data?: unknown[] }
  }
  const { data = [] } = await ask('GET')
  if (data.length > 0) return
  for (const project of SEEDS) await ask('POST', project)
}
