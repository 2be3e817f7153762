import { isIP } from 'node:net'
import { createSecureContext, getCACertificates, type SecureContext } from 'node:tls'
import { isJsonObject, type JsonObject } from '../../core/json.ts'
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

export interface TransportState {
  /** Open HTTP/2 connections. */
  sessions: number
  inFlight: number
  waiting: number
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

/** Anything but a JSON object counts as empty: an HTML page, a truncated document, a list. */
export function parseAnswer(text: string): JsonObject {
  try {
    const value: unknown = JSON.parse(text)
    return isJsonObject(value) ? value : {}
  } catch {
    return {}
  }
}
