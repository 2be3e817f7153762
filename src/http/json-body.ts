import type { FastifyRequest } from 'fastify'
import { ApiError } from '../core/errors.ts'
import { hasPoisonedKey, isJsonTooDeep, type Json, MAX_JSON_DEPTH } from '../core/json.ts'
import type { App } from './app-instance.ts'

/**
 * Reads bodies of `application/json`, and of `…+json` except for PATCH. It refuses a body that is not UTF-8, that is nested
 * too deep (checked before parsing), or that has a key such as `__proto__`.
 */
export function readJsonBodies(app: App): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser<Buffer>(
    /^application\/(?:[\w.-]+\+)?json(?=\s*(?:;|$))/,
    { parseAs: 'buffer' },
    (request, body, done) => {
      // Many clients send a content type without a body. The route's schema decides whether a body is needed.
      done(null, body.length === 0 ? undefined : read(request, body))
    },
  )
}

/** Shared by all requests: each body is decoded in one call, so no state is left for the next one. */
const utf8 = new TextDecoder('utf-8', { fatal: true })

function read({ method, headers }: FastifyRequest, body: Buffer): Json {
  if (method === 'PATCH') checkPatchType(headers['content-type'])
  checkCoding(headers['content-encoding'])
  checkCharset(headers['content-type'])
  const text = attempt('body is not valid UTF-8', () => utf8.decode(body))
  if (isJsonTooDeep(text)) {
    throw new ApiError('invalid_request', `body must not be nested deeper than ${MAX_JSON_DEPTH} levels`)
  }
  const value = attempt('body is not valid JSON', () => JSON.parse(text) as Json)
  if (hasPoisonedKey(text, value)) {
    const message = 'body must not have the key "__proto__", nor a "constructor" with a "prototype"'
    throw new ApiError('invalid_request', message)
  }
  return value
}

/** A merge patch or a list of operations would have another meaning than the fields to replace. */
function checkPatchType(contentType = ''): void {
  if (/^application\/json\s*(?:;|$)/i.test(contentType)) return
  throw new ApiError('unsupported_media_type', 'Content-Type must be application/json', {
    headers: { 'accept-patch': 'application/json' },
  })
}

function attempt<T>(message: string, work: () => T): T {
  try {
    return work()
  } catch (cause) {
    throw new ApiError('invalid_request', message, { cause })
  }
}

function checkCoding(coding: string | undefined): void {
  if (coding === undefined || coding.toLowerCase() === 'identity') return
  throw new ApiError('unsupported_media_type', 'Content-Encoding is not supported: send the body as it is')
}

const CHARSET = /;\s*charset\s*=\s*"?([^\s";]*)/i

function checkCharset(contentType = ''): void {
  const charset = CHARSET.exec(contentType)?.[1]
  if (charset === undefined || /^utf-?8$/i.test(charset)) return
  throw new ApiError('unsupported_media_type', 'The charset of Content-Type must be utf-8')
}
