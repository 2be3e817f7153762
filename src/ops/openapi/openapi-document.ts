import swagger, { type SwaggerTransform } from '@fastify/swagger'
import fastify, { type RouteOptions } from 'fastify'
import { STATUS_BY_CODE } from '../../core/errors.ts'
import type { Envelope } from '../../http/envelope.ts'
import type { RateLimitHeaderStyle } from '../../limits/rate-limit-headers.ts'
import { accessNote, SECURITY_SCHEMES, securityOf } from './openapi-access.ts'
import { componentHeaders, headersOf } from './openapi-headers.ts'
import { INTRODUCTION, TAGS } from './openapi-introduction.ts'
import { nameSchemas } from './openapi-names.ts'
import { type Document, type Operation, operationsOf, type Reference } from './openapi-operation.ts'
import { type Refusal, refusalsOf, toResponse, UNOWNED } from './openapi-refusals.ts'
import { SharedResponses } from './openapi-shared.ts'

/** What of the running service its description depends on. */
export interface Described {
  envelope: Envelope
  version: string
  rateLimitHeaders: RateLimitHeaderStyle
}

/** The whole document: what the routes' schemas say, and beside it all that follows from their access and inputs. */
export async function describeRoutes(routes: readonly RouteOptions[], described: Described): Promise<object> {
  const { envelope, rateLimitHeaders } = described
  const document = await drawSchemas(routes, described)
  const shared = new SharedResponses()
  const refuse = (route: RouteOptions | null, refusals: readonly Refusal[]) => {
    const byStatus = Object.groupBy(refusals, ([code]) => String(STATUS_BY_CODE[code]))
    const responses = Object.entries(byStatus).map(([status, alike = []]) => {
      const headers = headersOf(route, status, rateLimitHeaders)
      return [status, shared.refer(String(alike[0]?.[0]), { ...toResponse(alike, envelope), headers })]
    })
    return Object.fromEntries(responses) as Record<string, Reference>
  }

  const byId = new Map(routes.map((route) => [route.schema?.operationId, route]))
  for (const operation of operationsOf(document)) {
    const route = byId.get(operation.operationId)
    if (!route || operation.operationId === undefined) throw new Error(`${operation.summary} has no operationId`)
    markOptionalBody(operation)
    for (const [status, response] of Object.entries(operation.responses)) {
      Object.assign(response, { headers: headersOf(route, status, rateLimitHeaders) })
    }
    Object.assign(operation.responses, refuse(route, refusalsOf(route)))
  }
  refuse(null, UNOWNED)
  nameSchemas(document)
  Object.assign(document.components, { headers: componentHeaders(rateLimitHeaders), responses: shared.all })
  return document
}

/** Every body is described as required; one that may be null may as well be left out. */
function markOptionalBody({ requestBody }: Operation): void {
  const types = Object.values(requestBody?.content ?? {}).map(({ schema }) => [schema.type].flat())
  if (requestBody && types.some((each) => each.includes('null'))) requestBody.required = false
}

/** The routes once more, without what they do, on an app that only describes them. */
async function drawSchemas(routes: readonly RouteOptions[], { envelope, version }: Described): Promise<Document> {
  const shelf = fastify({ exposeHeadRoutes: false })
  // Nothing is ever validated or answered here.
  shelf.setValidatorCompiler(() => () => true)
  shelf.setSerializerCompiler(() => () => '')
  shelf.addSchema(envelope.schema)
  await shelf.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Project API',
        version,
        description: INTRODUCTION,
        license: { name: 'MIT', identifier: 'MIT' },
      },
      servers: [{ url: '/' }],
      tags: TAGS,
      components: { securitySchemes: SECURITY_SCHEMES },
    },
    refResolver: { buildLocalReference: (json, _base, _fragment, index) => String(json.$id ?? `def-${index}`) },
    transform: describe,
  })
  for (const { method, url, schema, config } of routes) {
    if (method !== 'HEAD')
      shelf.route({ method, url, handler: () => null, ...(schema && { schema }), ...(config && { config }) })
  }
  await shelf.ready()
  const document = shelf.swagger() as unknown as Document
  await shelf.close()
  return document
}

const describe: SwaggerTransform = ({ schema, url, route }) => {
  const { access, payload } = route.config ?? {}
  if (!schema || !access) return { schema: { ...schema, hide: true }, url }
  return {
    url,
    schema: {
      ...schema,
      ...(payload && { body: payload }),
      security: securityOf(access),
      description: [schema.description, accessNote(access)].filter(Boolean).join('\n\n'),
      response: describedSuccess(schema.response),
    },
  }
}

const SUCCESS: Record<string, string> = { 200: 'OK', 201: 'Created', 202: 'Accepted', 204: 'Done' }

/** Beside the schema and not in it, because a schema of one name says the same everywhere. */
function describedSuccess(response: unknown): Record<string, object> {
  const schemas = Object.entries((response ?? {}) as Record<string, { description?: string }>)
  return Object.fromEntries(
    schemas.map(([status, schema]) => [
      status,
      { ...schema, 'x-response-description': schema.description ?? SUCCESS[status] },
    ]),
  )
}
