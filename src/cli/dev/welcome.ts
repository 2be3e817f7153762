import type { Sandbox } from '../../sandbox/sandbox.ts'
import { startPortOf } from './ports.ts'

/** The first output of `dev`: one link to everything, the addresses, and two commands that work when pasted. */
export function welcome(
  url: string,
  { start, identity, runtime, push, receiver }: Sandbox,
  { hasConsole, notices, end }: { hasConsole: boolean; notices: readonly string[]; end: string },
): string[] {
  const isUsual = start.url === `http://127.0.0.1:${startPortOf(undefined)}`
  return [
    '',
    `  Start here  ${start.url}`,
    '',
    ...(hasConsole ? [`  Console    ${url}/console`] : []),
    `  API        ${url}`,
    `  Reference  ${url}/docs`,
    `  Tokens     ${identity.url}   (a token for any user and scopes)`,
    `  Runtime    ${runtime.url}   (fault settings: lost, doubled, late callbacks)`,
    `  Push       ${push.plainUrl}   (the messages that arrived on devices)`,
    `  Webhooks   ${receiver.url}   (what a backend received)`,
    '',
    '  Set API, ADA, ADMIN and RUNTIME in another terminal, then start a job:',
    '',
    `  eval "$(npx project-api dev-env${isUsual ? '' : ` --url ${start.url}`})"`,
    `  curl -s $API/jobs -H "Authorization: Bearer $ADA" -H 'Content-Type: application/json' -d '{"type":"report","input":{"title":"Sales","n":3}}'`,
    '',
    ...notices.map((notice) => `  ${notice}`),
    `  Ctrl-C stops everything${end}`,
    '',
  ]
}
