import type { AnyJobTypes, ApiEvent, ResetEvent } from '../types.ts'

/** A message counts if its time is at most this far from now, in either direction. */
const TOLERANCE_MS = 5 * 60_000
const PREFIX = 'whsec_'

export type { ApiEvent }

/** An event as webhooks send it. `reset` is only about streams. */
export type WebhookMessage<Types = AnyJobTypes> = Exclude<ApiEvent<Types>, ResetEvent>

/** `missing_header`: not a webhook. `bad_secret`: a secret is not one of this service. Answer 400 or 401 to all of them. */
export type WebhookErrorCode = 'missing_header' | 'too_old' | 'too_new' | 'wrong_signature' | 'bad_secret' | 'bad_body'

/** The message is not to be trusted. */
export class WebhookError extends Error {
  override readonly name = 'WebhookError'
  readonly code: WebhookErrorCode

  constructor(code: WebhookErrorCode, message: string) {
    super(message)
    this.code = code
  }
}

/** Headers of the Fetch API, or those of Node's `http`. */
export type WebhookHeaders = Headers | Readonly<Record<string, string | readonly string[] | undefined>>

/**
 * Checks the signature and the time of a webhook, and returns its event. Rejects with a `WebhookError`.
 *
 * `body` is the body exactly as it arrived: a parsed and rewritten one has another signature. `secrets` are all secrets
 * that are valid now: after a rotation, the old one is still used for 24 hours. Webhooks may arrive twice: `event.id` is
 * the same each time.
 */
export async function verifyWebhook<Types = AnyJobTypes>(
  body: string | Uint8Array | ArrayBuffer,
  headers: WebhookHeaders,
  secrets: string | readonly string[],
): Promise<WebhookMessage<Types>> {
  const id = headerOf(headers, 'webhook-id')
  const time = headerOf(headers, 'webhook-timestamp')
  const signatures = headerOf(headers, 'webhook-signature')
  const ageMs = Date.now() - Number(/^\d{1,12}$/.test(time) ? time : Number.NaN) * 1_000
  if (Number.isNaN(ageMs)) throw new WebhookError('missing_header', 'webhook-timestamp is not a number of seconds')
  if (ageMs > TOLERANCE_MS) throw new WebhookError('too_old', 'The webhook is older than 5 minutes')
  if (ageMs < -TOLERANCE_MS) throw new WebhookError('too_new', 'The webhook is from the future: check this clock')
  const content = bytesOf(body)
  const keys = await Promise.all([secrets].flat().map(importSecret))
  if (!(await isSigned({ content: joined(`${id}.${time}.`, content), signatures, keys }))) {
    throw new WebhookError('wrong_signature', 'No signature fits the body and the secrets')
  }
  try {
    return JSON.parse(new TextDecoder().decode(content)) as WebhookMessage<Types>
  } catch {
    throw new WebhookError('bad_body', 'The body is not JSON')
  }
}

function headerOf(headers: WebhookHeaders, name: string): string {
  const value = isFetchHeaders(headers) ? headers.get(name) : valueIn(headers, name)
  if (!value) throw new WebhookError('missing_header', `The header ${name} is missing`)
  return value
}

function isFetchHeaders(headers: WebhookHeaders): headers is Headers {
  return typeof headers.get === 'function'
}

function valueIn(headers: Exclude<WebhookHeaders, Headers>, name: string): string | undefined {
  const found = Object.keys(headers).find((key) => key.toLowerCase() === name)
  const value = found === undefined ? undefined : headers[found]
  return typeof value === 'string' ? value : value?.[0]
}

function bytesOf(body: string | Uint8Array | ArrayBuffer): Uint8Array {
  if (typeof body === 'string') return new TextEncoder().encode(body)
  return body instanceof Uint8Array ? body : new Uint8Array(body)
}

function joined(start: string, rest: Uint8Array): Uint8Array<ArrayBuffer> {
  const first = new TextEncoder().encode(start)
  const whole = new Uint8Array(first.length + rest.length)
  whole.set(first)
  whole.set(rest, first.length)
  return whole
}

async function importSecret(secret: string): Promise<CryptoKey> {
  const bytes = fromBase64(secret.startsWith(PREFIX) ? secret.slice(PREFIX.length) : secret)
  if (!bytes || bytes.length === 0) throw new WebhookError('bad_secret', 'A secret is not whsec_ and base64')
  return crypto.subtle.importKey('raw', bytes, { name: 'HMAC', hash: 'SHA-256' }, false, ['verify'])
}

interface Signed {
  content: Uint8Array<ArrayBuffer>
  /** As in the header: separated by spaces, each with its version. */
  signatures: string
  keys: readonly CryptoKey[]
}

/** Web Crypto compares in constant time. Signatures of other versions are ignored. */
async function isSigned({ content, signatures, keys }: Signed): Promise<boolean> {
  for (const signature of signatures.split(' ')) {
    const bytes = signature.startsWith('v1,') ? fromBase64(signature.slice(3)) : undefined
    for (const key of bytes ? keys : []) {
      if (await crypto.subtle.verify('HMAC', key, bytes as Uint8Array<ArrayBuffer>, content)) return true
    }
  }
  return false
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (char) => char.charCodeAt(0))
  } catch {
    return undefined
  }
}
