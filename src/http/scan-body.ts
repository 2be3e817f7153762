import { ApiError } from '../core/errors.ts'
import { JsonDepthError, type JsonScan, scanJson } from '../core/json/json-scan.ts'
import { JsonSyntaxError } from '../core/json/json-tokens.ts'
import type { Wanted } from '../core/json/wanted.ts'

/** Shared by all bodies: each is decoded in one call, so no state remains for the next body. */
const utf8 = new TextDecoder('utf-8', { fatal: true })

export function decodeBody(body: Buffer): string {
  try {
    return utf8.decode(body)
  } catch (cause) {
    throw new ApiError('invalid_request', 'body is not valid UTF-8', { cause })
  }
}

/** Checks a JSON body and finds parts of it. An invalid body gets a 400 that describes the fault. */
export async function scanBody(text: string, wanted: Wanted): Promise<JsonScan> {
  try {
    return await scanJson(text, { wanted })
  } catch (cause) {
    if (cause instanceof JsonDepthError) {
      throw new ApiError('invalid_request', `body must not be ${cause.message}`, { cause })
    }
    if (cause instanceof JsonSyntaxError) throw new ApiError('invalid_request', 'body is not valid JSON', { cause })
    throw cause
  }
}
