import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { SANDBOX_SCOPES, type SandboxUser } from './users.ts'

const TEMPLATE = readFileSync(new URL('./identity-page.html', import.meta.url), 'utf8')

export interface IdentityPageOptions {
  issuer: string
  tokenUrl: string
  apiUrl: string
  users: readonly SandboxUser[]
}

/** The page where a developer picks a token: self-contained, and nothing runs on it but its own script. */
export function renderIdentityPage(options: IdentityPageOptions): { html: string; contentSecurityPolicy: string } {
  const nonce = randomBytes(16).toString('base64')
  const policy = [
    "default-src 'none'",
    `style-src 'nonce-${nonce}'`,
    `script-src 'nonce-${nonce}'`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ]
  // Escaped, so that no value can end the script element it is written into.
  const config = JSON.stringify({ ...options, scopes: SANDBOX_SCOPES }).replaceAll('<', '\\u003c')
  const html = TEMPLATE.replaceAll('__NONCE__', nonce).replace('"__CONFIG__"', () => config)
  return { html, contentSecurityPolicy: policy.join('; ') }
}
