import { createHmac } from 'node:crypto'
import type { Random } from '../core/random.ts'

const PREFIX = 'whsec_'
const SECRET_BYTES = 32

export function newSecret(random: Random): string {
  return `${PREFIX}${Buffer.from(random.bytes(SECRET_BYTES)).toString('base64')}`
}

interface Signed {
  id: string
  /** Of the attempt. */
  timestampSeconds: number
  body: string
  /** One signature for each: a receiver accepts any of them. */
  secrets: readonly string[]
}

/** The headers of a message as in Standard Webhooks 1.0. */
export function signedHeaders({ id, timestampSeconds, body, secrets }: Signed): Record<string, string> {
  const signatures = secrets.map((secret) => {
    const key = Buffer.from(secret.slice(PREFIX.length), 'base64')
    return `v1,${createHmac('sha256', key).update(`${id}.${timestampSeconds}.${body}`).digest('base64')}`
  })
  return {
    'webhook-id': id,
    'webhook-timestamp': String(timestampSeconds),
    'webhook-signature': signatures.join(' '),
  }
}
