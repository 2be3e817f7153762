import { SCOPES } from '../../auth/scopes.ts'
import type { Access } from '../../http/gate/access.ts'

/** Who may call an operation, in OpenAPI's words and in ours. */
export function securityOf(access: Access) {
  if (access.kind === 'public') return []
  return access.kind === 'callback' ? [{ callbackToken: [] }, { webhookSecret: [] }] : [{ bearer: [] }, { apiKey: [] }]
}

export function accessNote(access: Access): string {
  if (access.kind === 'public') return `Public: ${access.reason}.`
  if (access.kind === 'callback') return 'For the agent runtime: a token of the callback URL, a secret, or a signature.'
  if (access.kind === 'bearer') return 'Needs a valid credential, no scope.'
  return `Needs ${access.anyOf.map((scope) => `\`${scope}\``).join(' or ')}${access.anyOf.includes('admin:*') ? '' : ' (or `admin:*`)'}.`
}

const SCOPE_TABLE = [
  '| Scope | Access |',
  '|---|---|',
  ...Object.entries(SCOPES).map(([scope, access]) => `| \`${scope}\` | ${access} |`),
].join('\n')

export const SECURITY_SCHEMES = {
  bearer: {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'JWT',
    description: `An access token of the user pool. Scopes come from the claim \`custom:scopes\`:\n\n${SCOPE_TABLE}`,
  },
  callbackToken: {
    type: 'apiKey',
    in: 'query',
    name: 'token',
    description: 'The per-job token that the service put into the callback URL, with `job_id` beside it.',
  },
  webhookSecret: {
    type: 'apiKey',
    in: 'header',
    name: 'X-Webhook-Secret',
    description: '`WEBHOOK_SECRET`, here or as a bearer token, or a Standard Webhooks signature made with it.',
  },
  apiKey: {
    type: 'apiKey',
    in: 'header',
    name: 'X-API-Key',
    description:
      'A service account’s key. Alone it is the caller; beside a bearer token it only sets the rate-limit tier.',
  },
} as const
