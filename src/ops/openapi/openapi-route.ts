import type { RouteOptions } from 'fastify'
import { Type } from 'typebox'
import type { App } from '../../http/app-instance.ts'
import { publicAccess } from '../../http/gate/access.ts'
import type { DocumentOptions } from './document.ts'

/**
 * The OpenAPI 3.1 document, built from the same schemas and access rules that the service enforces. It is built on the
 * first request, so that a service that never serves it does not load the packages it needs.
 */
export class ApiDescription {
  readonly #routes: RouteOptions[] = []
  readonly #options: DocumentOptions
  #document: Promise<object> | undefined

  /** Describes the routes that are added to the application from now on. */
  constructor(app: App, options: DocumentOptions) {
    this.#options = options
    app.addHook('onRoute', (route) => {
      this.#routes.push(route)
    })
  }

  document(): Promise<object> {
    this.#document ??= this.#build()
    return this.#document
  }

  async #build(): Promise<object> {
    const { buildDocument } = await import('./document.ts')
    return buildDocument(this.#routes, this.#options)
  }
}

export function openapiRoute(app: App, description: ApiDescription): void {
  const schema = {
    operationId: 'getOpenapi',
    tags: ['Operations'],
    summary: 'This document',
    response: { 200: Type.Object({}, { additionalProperties: true, description: 'OpenAPI 3.1' }) },
  }
  const config = { access: publicAccess('the API’s own description') }
  app.get('/openapi.json', { config, schema }, () => description.document())
}
