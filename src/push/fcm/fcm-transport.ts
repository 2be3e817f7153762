import { isIP } from 'node:net'
import { createSecureContext, getCACertificates, type SecureContext } from 'node:tls'
import type { Attempt } from './fcm-attempts.ts'

/** Real answers of the provider and of the token endpoint are a few hundred bytes. */
export const MAX_ANSWER_BYTES = 64 * 1024

export interface FcmRequest {
  path: string
  headers: Readonly<Record<string, string>>
  body: string
  /** Ends the request with a reason, at any stage. */
  attempt: Attempt
}

export interface FcmAnswer {
  status: number
  headers: Readonly<Record<string, string | string[] | undefined>>
  body: string
}

/** Makes one POST: resolves with the whole answer, or rejects. It never retries, because the provider may have delivered. */
export interface FcmTransport {
  post(request: FcmRequest): Promise<FcmAnswer>
  state(): { sessions: number; inFlight: number; waiting: number }
  /** Aborts requests in flight. */
  close(): Promise<void>
}

/** Collects the body of an answer, up to its limit. */
export class BodyReader {
  readonly #chunks: Buffer[] = []
  #bytes = 0

  /** False when the body is over the limit. */
  add(chunk: Buffer): boolean {
    this.#bytes += chunk.byteLength
    if (this.#bytes > MAX_ANSWER_BYTES) return false
    this.#chunks.push(chunk)
    return true
  }

  text(): string {
    const [first = Buffer.alloc(0), ...rest] = this.#chunks
    return (rest.length === 0 ? first : Buffer.concat(this.#chunks)).toString('utf8')
  }
}

export function tooLarge(): Error {
  return new Error(`the answer is over ${MAX_ANSWER_BYTES} bytes`)
}

/** The certificates that the process trusts, and one more. */
export function trustWith(ca: string): SecureContext {
  return createSecureContext({ ca: [...getCACertificates('default'), ca] })
}

export interface TlsOptions {
  secureContext?: SecureContext
  servername?: string
}

export function tlsOptions(url: URL, trust: SecureContext | null): TlsOptions {
  const host = hostOf(url)
  return {
    // SNI cannot carry an IP address. The certificate is still checked against the address.
    ...(isIP(host) === 0 ? { servername: host } : {}),
    ...(trust === null ? {} : { secureContext: trust }),
  }
}

export function hostOf({ hostname }: URL): string {
  return hostname.replace(/^\[|\]$/g, '')
}

/** An error of a connection to several addresses has a code but no message. */
export function errorText(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.message || String((error as NodeJS.ErrnoException).code ?? error.name)
}
