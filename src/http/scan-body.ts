import { ApiError } from '../core/errors.ts'
import { JsonDepthError, type JsonScan, scanJson } from '../core/json/json-scan.ts'
import { JsonSyntaxError } from '../core/json/json-tokens.ts'
import type { Wanted } from '../core/json/wanted.ts'

/** Decodes a whole body at once, so no bytes stay behind for the next one. */
const utf8 = new TextDecoder('utf-8', { fatal: true })

export function decodeBody(body: Buffer): string {
  try {
    return utf8.decode(body)
  } catch (cause) {
    throw new ApiError('invalid_request', 'body is not valid UTF-8', { cause })
  }
}

/** Checks a JSON body and finds parts of it. A fault is answered with 400 and its description. */
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
