import type { Sandbox } from '../sandbox/sandbox.ts'

const TOKEN_SECONDS = 12 * 3600

/** What a newcomer needs to see first: where everything is, and lines that work when pasted. */
export function welcome(url: string, { identity, runtime, push }: Sandbox): string[] {
  const token = (user: string) => identity.mint({ user, expiresInSeconds: TOKEN_SECONDS })
  const ada = `-H "Authorization: Bearer ${token('ada')}"`
  const json = `-H 'Content-Type: application/json'`
  return [
    '',
    `  API        ${url}`,
    `  Reference  ${url}/docs`,
    `  Tokens     ${identity.url}   (any user, any scopes)`,
    `  Runtime    ${runtime.url}   (dials for lost, doubled, late and failing callbacks)`,
    `  Push       ${push.plainUrl}   (what arrived on the devices)`,
    '',
    '  Ready for 12 hours, one for each user (ada, grace, admin):',
    '',
    ...['ada', 'grace', 'admin'].map((user) => `  ${user.toUpperCase()}=${token(user)}`),
    '',
    '  List projects:',
    '',
    `  curl -s ${url}/v1/projects ${ada}`,
    '',
    '  Start a job, then look at it (the id is in the answer):',
    '',
    `  curl -s ${url}/jobs ${ada} ${json} -d '{"type":"report","input":{"title":"Sales","n":3}}'`,
    `  curl -s ${url}/jobs ${ada}`,
    '',
    '  Lose every callback from now on; jobs still end (see "settled_by"):',
    '',
    `  curl -s -X PATCH ${runtime.url}/sandbox/dials ${json} -d '{"drop_callbacks":1}'`,
    '',
    '  Watch what happens (in another window), and register a device for push:',
    '',
    `  curl -sN ${url}/v1/events ${ada}`,
    `  curl -s ${url}/v1/devices ${ada} ${json} -d '{"token":"my-phone","platform":"android"}'`,
    '',
    '  Ctrl-C stops everything and leaves nothing behind.',
    '',
  ]
}
