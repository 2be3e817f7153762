import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { DIALS } from './agent-runtime-dials.ts'

const TEMPLATE = readFileSync(new URL('./agent-runtime-page.html', import.meta.url), 'utf8')

/** The page with the dials and what they do: self-contained, and nothing runs on it but its own script. */
export function renderAgentRuntimePage(): { html: string; contentSecurityPolicy: string } {
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
  const config = JSON.stringify({ dials: DIALS }).replaceAll('<', '\\u003c')
  const html = TEMPLATE.replaceAll('__NONCE__', nonce).replace('"__CONFIG__"', () => config)
  return { html, contentSecurityPolicy: policy.join('; ') }
}
