import { createClient } from '@project-api/client'

export const USERS = { ada: 'Ada Lovelace', grace: 'Grace Hopper' }
export type User = keyof typeof USERS

/** The job types of this deployment, as `project-api types` prints them. */
export interface JobTypes {
  agent: { input: object; output: unknown; resume: string }
  report: { input: object; output: { title: string; n: number } }
}

const { VITE_API_URL: url, VITE_TOKENS_URL: tokens } = import.meta.env

/** Signs in at the sandbox's identity provider, which asks for no password. A real app has its own sign-in here. */
async function signIn(username: User): Promise<string> {
  const answer = await fetch(`${tokens}/local_pool/oauth2/token`, {
    method: 'POST',
    body: new URLSearchParams({ grant_type: 'password', username, expires_in: '300' }),
  })
  if (!answer.ok) throw new Error('The sign-in failed')
  return ((await answer.json()) as { access_token: string }).access_token
}

/** The client of one user. It uses one token until the service refuses it. */
export function clientFor(user: User) {
  let token: Promise<string> | undefined
  return createClient<JobTypes>({
    url,
    token: ({ refresh }) => {
      if (refresh || !token) {
        // After a failed sign-in, the next request signs in again.
        token = signIn(user).catch((error: unknown) => {
          token = undefined
          throw error
        })
      }
      return token
    },
  })
}

export type Api = ReturnType<typeof clientFor>
