import swagger, { type SwaggerTransform } from '@fastify/swagger'
import fastify, { type RouteOptions } from 'fastify'
import { SCOPES } from '../../auth/scopes.ts'
import { STATUS_BY_CODE } from '../../core/errors.ts'
import type { Envelope } from '../../http/envelope.ts'
import type { RateLimitHeaderStyle } from '../../limits/rate-limit-headers.ts'
import {
  accessNote,
  nameSchemas,
  type OpenapiDocument,
  type Operation,
  operationsOf,
  type Reference,
  securityOf,
} from './operations.ts'
import { componentHeaders, errorCasesOf, headersOf, SharedResponses } from './responses.ts'

import { type DescribedJobType, describeTypedJobs } from './typed-jobs.ts'

/** The settings of the running service that change its description. */
export interface DocumentOptions {
  envelope: Envelope
  version: string
  rateLimitHeaders: RateLimitHeaderStyle
  jobTypes: readonly DescribedJobType[]
}

/** Builds the whole document: the routes' own schemas, and the errors, headers and security that follow from their access. */
export async function buildDocument(routes: readonly RouteOptions[], options: DocumentOptions): Promise<object> {
  const { envelope, rateLimitHeaders } = options
  const document = await generateFromSchemas(routes, options)
  const shared = new SharedResponses(envelope)
  const errorResponses = (route: RouteOptions) => {
    const byStatus = Object.groupBy(errorCasesOf(route), ([code]) => String(STATUS_BY_CODE[code]))
    const responses = Object.entries(byStatus).map(([status, cases = []]) => {
      return [status, shared.refer(cases, headersOf(route, status, rateLimitHeaders))]
    })
    return Object.fromEntries(responses) as Record<string, Reference>
  }

  const byId = new Map(routes.map((route) => [route.schema?.operationId, route]))
  for (const operation of operationsOf(document)) {
    const route = byId.get(operation.operationId)
    if (!route || operation.operationId === undefined) throw new Error(`${operation.summary} has no operationId`)
    markOptionalBody(operation)
    nameHeaders(operation)
    for (const [status, response] of Object.entries(operation.responses)) {
      Object.assign(response, { headers: headersOf(route, status, rateLimitHeaders) })
    }
    Object.assign(operation.responses, errorResponses(route))
  }
  nameSchemas(document)
  describeTypedJobs(document, options.jobTypes)
  Object.assign(document.components, { headers: componentHeaders(rateLimitHeaders), responses: shared.all })
  return document
}

/** The generator marks every body as required. A body that may be null may also be absent. */
function markOptionalBody({ requestBody }: Operation): void {
  const types = Object.values(requestBody?.content ?? {}).map(({ schema }) => [schema.type].flat())
  if (requestBody && types.some((each) => each.includes('null'))) requestBody.required = false
}

/** The framework uses lower-case header names. The document uses the usual spelling, such as `Idempotency-Key`. */
function nameHeaders({ parameters = [] }: Operation): void {
  for (const parameter of parameters.filter((one) => one.in === 'header')) {
    parameter.name = parameter.name.replace(/(?<![a-z])[a-z]/g, (letter) => letter.toUpperCase()).replace(/-Id$/, '-ID')
  }
}

/** Registers the routes, without their handlers, on a second application that serves only to generate the document. */
async function generateFromSchemas(
  routes: readonly RouteOptions[],
  { envelope, version }: DocumentOptions,
): Promise<OpenapiDocument> {
  const generator = fastify({ exposeHeadRoutes: false })
  // The generator never gets a request, so it needs no validators and no serializers.
  generator.setValidatorCompiler(() => () => true)
  generator.setSerializerCompiler(() => () => '')
  generator.addSchema(envelope.schema)
  await generator.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Project API',
        version,
        description: INTRODUCTION,
        contact: { name: 'The operators of this service' },
        license: { name: 'MIT', identifier: 'MIT' },
      },
      servers: [{ url: '/' }],
      tags: TAGS,
      components: { securitySchemes: SECURITY_SCHEMES },
    },
    refResolver: { buildLocalReference: (json, _base, _fragment, index) => String(json.$id ?? `def-${index}`) },
    transform: addAccess,
  })
  for (const { method, url, schema, config } of routes) {
    if (method !== 'HEAD')
      generator.route({ method, url, handler: () => null, ...(schema && { schema }), ...(config && { config }) })
  }
  await generator.ready()
  const document = generator.swagger() as unknown as OpenapiDocument
  await generator.close()
  return document
}

const addAccess: SwaggerTransform = ({ schema, url, route }) => {
  const { access, payload } = route.config ?? {}
  if (!schema || !access) return { schema: { ...schema, hide: true }, url }
  return {
    url,
    schema: {
      ...schema,
      ...(payload && { body: payload }),
      security: securityOf(access),
      description: [schema.description, accessNote(access)].filter(Boolean).join('\n\n'),
      response: describeSuccess(schema.response),
    },
  }
}

const SUCCESS: Record<string, string> = { 200: 'OK', 201: 'Created', 202: 'Accepted', 204: 'Done' }

/**
 * Moves the description from the schema to the response: two responses with the same named schema may have different
 * descriptions.
 */
function describeSuccess(response: unknown): Record<string, object> {
  const schemas = Object.entries((response ?? {}) as Record<string, { description?: string }>)
  return Object.fromEntries(
    schemas.map(([status, schema]) => [
      status,
      { ...schema, 'x-response-description': schema.description ?? SUCCESS[status] },
    ]),
  )
}

const INTRODUCTION = `Every operation except the public ones needs \`Authorization: Bearer <access token>\` or \`X-API-Key\`.

**Errors** all have one shape, with a stable \`code\`. **Lists** are newest first: follow \`next_cursor\` while \`has_more\`.
**Creating** takes an \`Idempotency-Key\`: a repeat within 24 h returns the first answer. **Changing** takes \`If-Match\` with an
\`ETag\` of an earlier answer. **Rate limits** are in the \`RateLimit-*\` headers; after a 429, wait for the seconds in \`Retry-After\`.
Every answer carries \`X-Request-Id\`: quote it when you ask for help.

Requests that match no operation are refused in the same shape: an unknown path with 404, an unknown method with 405 and
\`Allow\`, malformed HTTP with 400, 408 or 431.`

const TAGS = [
  { name: 'Projects', description: 'The projects that work belongs to.' },
  { name: 'Jobs', description: 'Runs of the agent runtime. Their results are never lost.' },
  { name: 'Callbacks', description: 'The agent runtime posts a callback when a run ends.' },
  { name: 'Realtime', description: 'Streams of events.' },
  { name: 'Push', description: 'Devices and the notifications sent to them.' },
  { name: 'Webhooks', description: 'Events for backends: endpoints, and what was sent to them.' },
  { name: 'Usage', description: 'Usage per calendar month.' },
  { name: 'Users', description: 'Profiles, created on a user’s first request.' },
  { name: 'Service accounts', description: 'Keys for backends: their own identity, their own rate-limit tier.' },
  { name: 'Operations', description: 'Health probes, metrics and this document.' },
]

const SCOPE_TABLE = [
  '| Scope | Access |',
  '|---|---|',
  ...Object.entries(SCOPES).map(([scope, access]) => `| \`${scope}\` | ${access} |`),
].join('\n')

const SECURITY_SCHEMES = {
  bearer: {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'JWT',
    description: `An access token of the identity provider. Scopes come from one of its claims, by default \`custom:scopes\`:\n\n${SCOPE_TABLE}`,
  },
  callbackToken: {
    type: 'apiKey',
    in: 'query',
    name: 'token',
    description: 'The per-job token that the service puts into the callback URL, together with `job_id`.',
  },
  webhookSecret: {
    type: 'apiKey',
    in: 'header',
    name: 'X-Webhook-Secret',
    description: '`WEBHOOK_SECRET`, here or as a bearer token, or a Standard Webhooks signature made with it.',
  },
  apiKey: {
    type: 'apiKey',
    in: 'header',
    name: 'X-API-Key',
    description:
      'A service account’s key. Alone it identifies the caller; together with a bearer token it only sets the rate-limit tier.',
  },
} as const
