import { isIP } from 'node:net'
import { createSecureContext, getCACertificates, type SecureContext } from 'node:tls'
import type { Attempt } from './fcm-attempts.ts'

/** Both the provider's answers and its token endpoint's are a few hundred bytes. */
export const MAX_ANSWER_BYTES = 64 * 1024

export interface FcmRequest {
  path: string
  headers: Readonly<Record<string, string>>
  body: string
  /** Ends the request, with its reason, whatever state it is in. */
  attempt: Attempt
}

export interface FcmAnswer {
  status: number
  headers: Readonly<Record<string, string | string[] | undefined>>
  body: string
}

/** One POST, its whole answer or a rejection. It never tries again: the provider may have delivered all the same. */
export interface FcmTransport {
  post(request: FcmRequest): Promise<FcmAnswer>
  state(): { sessions: number; inFlight: number; waiting: number }
  /** Breaks off what is in flight. */
  close(): Promise<void>
}

/** Gathers an answer's body up to its limit. */
export class BodyReader {
  readonly #chunks: Buffer[] = []
  #bytes = 0

  /** False once it is too much. */
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

/** What the process trusts anyway, and one certificate more. */
export function trustAlso(ca: string): SecureContext {
  return createSecureContext({ ca: [...getCACertificates('default'), ca] })
}

export interface TlsOptions {
  secureContext?: SecureContext
  servername?: string
}

export function tlsOptions(url: URL, trust: SecureContext | null): TlsOptions {
  const host = hostOf(url)
  return {
    // An address has no place in SNI; the certificate is checked against it all the same.
    ...(isIP(host) === 0 ? { servername: host } : {}),
    ...(trust === null ? {} : { secureContext: trust }),
  }
}

export function hostOf({ hostname }: URL): string {
  return hostname.replace(/^\[|\]$/g, '')
}

/** A failure to connect to several addresses has no words of its own. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.message || String((error as NodeJS.ErrnoException).code ?? error.name)
}
