import type { RouteOptions } from 'fastify'
import { Type } from '../../core/schema.ts'
import type { App } from '../../http/app-instance.ts'
import { open } from '../../http/gate/access.ts'
import type { Described } from './openapi-document.ts'

/**
 * OpenAPI 3.1 drawn from the very schemas and access rules that are enforced, so that it cannot say anything else. It is
 * made when it is first asked for: a service nobody reads about should not load what it takes.
 */
export class ApiDescription {
  readonly #routes: RouteOptions[] = []
  readonly #described: Described
  #document: Promise<object> | undefined

  constructor(described: Described) {
    this.#described = described
  }

  add(route: RouteOptions): void {
    this.#routes.push(route)
  }

  document(): Promise<object> {
    this.#document ??= this.#describe()
    return this.#document
  }

  async #describe(): Promise<object> {
    const { describeRoutes } = await import('./openapi-document.ts')
    return describeRoutes(this.#routes, this.#described)
  }
}

export function openapiRoute(app: App, description: ApiDescription): void {
  const schema = {
    operationId: 'getOpenapi',
    tags: ['Operations'],
    summary: 'This document',
    response: { 200: Type.Object({}, { additionalProperties: true, description: 'OpenAPI 3.1' }) },
  }
  const config = { access: open('the API’s own description') }
  app.get('/openapi.json', { config, schema }, () => description.document())
}
