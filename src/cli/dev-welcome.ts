import type { Sandbox } from '../sandbox/sandbox.ts'

const TOKEN_SECONDS = 12 * 3600

/** The first output of `dev`: all addresses, and commands that work when pasted. */
export function welcome(url: string, { identity, runtime, push }: Sandbox): string[] {
  const token = (user: string) => identity.mint({ user, expiresInSeconds: TOKEN_SECONDS })
  const ada = `-H "Authorization: Bearer ${token('ada')}"`
  const json = `-H 'Content-Type: application/json'`
  return [
    '',
    `  API        ${url}`,
    `  Reference  ${url}/docs`,
    `  Tokens     ${identity.url}   (issues a token for any user and scopes)`,
    `  Runtime    ${runtime.url}   (fault settings: lost, doubled, late and failing callbacks)`,
    `  Push       ${push.plainUrl}   (shows the messages that arrived on devices)`,
    '',
    '  Access tokens for the users ada, grace and admin, valid for 12 hours:',
    '',
    ...['ada', 'grace', 'admin'].map((user) => `  ${user.toUpperCase()}=${token(user)}`),
    '',
    '  List projects:',
    '',
    `  curl -s ${url}/v1/projects ${ada}`,
    '',
    '  Start a job, then list the jobs:',
    '',
    `  curl -s ${url}/jobs ${ada} ${json} -d '{"type":"report","input":{"title":"Sales","n":3}}'`,
    `  curl -s ${url}/jobs ${ada}`,
    '',
    '  Lose every callback from now on. Jobs still end (see "settled_by"):',
    '',
    `  curl -s -X PATCH ${runtime.url}/sandbox/faults ${json} -d '{"drop_callbacks":1}'`,
    '',
    '  Watch events (in another window), and register a device for push:',
    '',
    `  curl -sN ${url}/v1/events ${ada}`,
    `  curl -s ${url}/v1/devices ${ada} ${json} -d '{"token":"my-phone","platform":"android"}'`,
    '',
    '  Ctrl-C stops everything and leaves nothing behind.',
    '',
  ]
}
