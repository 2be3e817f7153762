import { createHmac, hash, timingSafeEqual } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import type { Clock } from '../core/clock.ts'
import { bearerToken } from './token-format.ts'

const SIGNATURE_TOLERANCE_SECONDS = 300

interface CallbackRequest {
  headers: IncomingHttpHeaders
  token: string | undefined
  jobId: string | undefined
}

export type CallbackProof =
  /** `jobId` is set when the proof is bound to that job alone. */
  { authentic: true; jobId: string | null } | { authentic: false; signed: boolean }

/**
 * Checks that a callback is from the runtime: by the per-job token in its URL, a shared secret in a header, or a Standard
 * Webhooks signature over its body. One valid proof is enough. During a rotation both live secrets are accepted. All
 * comparisons are constant-time.
 */
export class CallbackAuthenticity {
  #secrets: readonly string[] = []
  #secretDigests: readonly Buffer[] = []
  readonly #clock: Clock

  constructor(secrets: readonly string[], clock: Clock) {
    this.useSecrets(secrets)
    this.#clock = clock
  }

  /** From now on only these are accepted. To rotate a secret, give the new one and the old one. */
  useSecrets(secrets: readonly string[]): void {
    this.#secrets = secrets
    this.#secretDigests = secrets.map(digest)
  }

  /** Without a secret every callback is accepted; a production service does not start without one. */
  get acceptsAll(): boolean {
    return this.#secrets.length === 0
  }

  /** Null if no secret is configured. */
  tokenFor(jobId: string): string | null {
    const [secret] = this.#secrets
    return secret === undefined ? null : tokenOf(secret, jobId)
  }

  /** The checks before the body is read. */
  check({ headers, token, jobId }: CallbackRequest): CallbackProof {
    if (this.acceptsAll) return { authentic: true, jobId: null }
    if (token !== undefined && jobId !== undefined && this.#some((secret) => isSame(token, tokenOf(secret, jobId)))) {
      return { authentic: true, jobId }
    }
    const given = [headers['x-webhook-secret'], bearerToken(headers.authorization)]
    for (const value of given) {
      if (typeof value === 'string' && this.#isSecret(value)) return { authentic: true, jobId: null }
    }
    return { authentic: false, signed: typeof headers['webhook-signature'] === 'string' }
  }

  /** The check that needs the body, byte for byte. */
  checkSignature(headers: IncomingHttpHeaders, body: Buffer): boolean {
    const id = headers['webhook-id']
    const timestamp = headers['webhook-timestamp']
    const signatures = headers['webhook-signature']
    if (typeof id !== 'string' || id === '') return false
    if (typeof timestamp !== 'string' || typeof signatures !== 'string') return false
    if (!/^\d{1,12}$/.test(timestamp)) return false
    const ageSeconds = Math.abs(this.#clock.calendar() / 1000 - Number(timestamp))
    if (ageSeconds > SIGNATURE_TOLERANCE_SECONDS) return false
    const given = signatures.split(' ').filter((signature) => signature.startsWith('v1,'))
    return this.#some((secret) => {
      const expected = `v1,${createHmac('sha256', keyOf(secret)).update(`${id}.${timestamp}.`).update(body).digest('base64')}`
      return given.some((signature) => isSame(signature, expected))
    })
  }

  #isSecret(value: string): boolean {
    const given = digest(value)
    return this.#secretDigests.some((expected) => timingSafeEqual(given, expected))
  }

  #some(holds: (secret: string) => boolean): boolean {
    return this.#secrets.some(holds)
  }
}

function tokenOf(secret: string, jobId: string): string {
  return createHmac('sha256', secret).update(`callback:${jobId}`).digest('base64url')
}

/** `whsec_` marks a key in base64; any other secret is the key itself. */
function keyOf(secret: string): Buffer {
  return secret.startsWith('whsec_') ? Buffer.from(secret.slice('whsec_'.length), 'base64') : Buffer.from(secret)
}

/** Constant-time compare for fixed-length values; the length is not secret. */
function isSame(given: string, expected: string): boolean {
  const bytes = Buffer.from(given)
  return bytes.length === expected.length && timingSafeEqual(bytes, Buffer.from(expected))
}

/**
 * Compare digests instead of secrets: then the time does not depend on the length of the secret. Node makes a digest as
 * text three times as fast as a digest as bytes.
 */
function digest(text: string): Buffer {
  return Buffer.from(hash('sha256', text, 'hex'))
}
