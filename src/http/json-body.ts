import type { FastifyRequest } from 'fastify'
import { ApiError } from '../core/errors.ts'
import type { JsonPart } from '../core/json/json-part.ts'
import { JsonText } from '../core/json/json-text.ts'
import { WHOLE, wantAll, wantPath } from '../core/json/wanted.ts'
import type { Json } from '../core/json.ts'
import type { App } from './app-instance.ts'
import { decodeBody, scanBody } from './scan-body.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The fields of its body that are documents. The handler gets each as a `JsonText`. */
    documents?: readonly string[]
  }
  interface FastifyRequest {
    documents: Record<string, JsonText> | null
  }
}

/** Parsing more values would block the event loop. */
const MAX_VALUES = 20_000

/**
 * Reads bodies of `application/json`, and of `…+json` except for PATCH. It refuses a body that is not UTF-8, that is nested
 * too deep, or that has a key such as `__proto__`. Documents are cut out of the body and keep their exact text; only the
 * rest is parsed. The schema is checked with an empty value of the same type in place of each document.
 */
export function readJsonBodies(app: App): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser<Buffer>(
    /^application\/(?:[\w.-]+\+)?json(?=\s*(?:;|$))/,
    { parseAs: 'buffer' },
    // Many clients send a content type without a body. The route's schema decides whether a body is needed.
    async (request: FastifyRequest, body: Buffer) => (body.length === 0 ? undefined : read(request, body)),
  )
  app.decorateRequest('documents', null)
  app.addHook('preHandler', (request, _reply, done) => {
    if (request.documents !== null) Object.assign(request.body as object, request.documents)
    done()
  })
}

async function read(request: FastifyRequest, body: Buffer): Promise<Json> {
  const { method, headers } = request
  if (method === 'PATCH') checkPatchType(headers['content-type'])
  checkCoding(headers['content-encoding'])
  checkCharset(headers['content-type'])
  const text = decodeBody(body)
  const names = request.routeOptions.config.documents ?? []
  const scan = await scanBody(text, wantAll(WHOLE, ...names.map((name) => wantPath([name]))))
  if (scan.hasPrototypeKey) {
    const message = 'body must not have the key "__proto__", nor a "constructor" with a "prototype"'
    throw new ApiError('invalid_request', message)
  }
  const documents = names.flatMap((name) => {
    const part = scan.root.at(name)
    return part ? [{ name, part }] : []
  })
  if (documents.length > 0) {
    request.documents = Object.fromEntries(documents.map(({ name, part }) => [name, new JsonText(part.text)]))
  }
  return parseRest(
    text,
    scan.root,
    documents.map(({ part }) => part),
  )
}

/** Parses a body without its documents. */
function parseRest(text: string, { values }: JsonPart, documents: readonly JsonPart[]): Json {
  const count = documents.reduce((rest, part) => rest - part.values, values)
  if (count > MAX_VALUES) throw new ApiError('invalid_request', `body must not have more than ${MAX_VALUES} values`)
  let rest = ''
  let from = 0
  for (const { start, end, kind } of documents.toSorted((a, b) => a.start - b.start)) {
    rest += text.slice(from, start) + EMPTY_VALUES[kind]
    from = end
  }
  return JSON.parse(rest + text.slice(from)) as Json
}

const EMPTY_VALUES = { object: '{}', array: '[]', string: '""', number: '0', boolean: 'false', null: 'null' }

/** PATCH replaces the fields of the body. A merge patch or a list of operations means something else, so it is refused. */
function checkPatchType(contentType = ''): void {
  if (/^application\/json\s*(?:;|$)/i.test(contentType)) return
  throw new ApiError('unsupported_media_type', 'Content-Type must be application/json', {
    headers: { 'accept-patch': 'application/json' },
  })
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
