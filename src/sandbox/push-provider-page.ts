import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { type Answer, PUSH_PREFIXES } from './push-provider-answers.ts'
import { PUSH_DIALS } from './push-provider-dials.ts'

const TEMPLATE = readFileSync(new URL('./push-provider-page.html', import.meta.url), 'utf8')

/** The page with what arrived and how to break it: self-contained, and nothing runs on it but its own script. */
export function renderPushProviderPage(): Answer {
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
  const config = JSON.stringify({ dials: PUSH_DIALS, prefixes: PUSH_PREFIXES }).replaceAll('<', '\\u003c')
  const headers = {
    'content-type': 'text/html; charset=utf-8',
    'content-security-policy': policy.join('; '),
    'cache-control': 'no-store',
    'referrer-policy': 'no-referrer',
  }
  const body = TEMPLATE.replaceAll('__NONCE__', nonce).replace('"__CONFIG__"', () => config)
  return { status: 200, headers, body }
}
