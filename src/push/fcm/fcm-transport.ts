import { createSecureContext, getCACertificates, type SecureContext } from 'node:tls'
import { isJsonObject, type JsonObject } from '../../core/json.ts'
import type { Attempt } from './fcm-attempts.ts'

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

/** The certificates that the process trusts, and one more. */
export function trustWith(ca: string): SecureContext {
  return createSecureContext({ ca: [...getCACertificates('default'), ca] })
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
