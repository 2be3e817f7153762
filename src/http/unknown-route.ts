import type { FastifyReply, FastifyRequest, onRequestHookHandler, RouteOptions } from 'fastify'
import { ApiError } from '../core/errors.ts'
import type { App } from './app-instance.ts'
import { pathOf } from './gate/access.ts'

/**
 * Answers a wrong method with 405 and `Allow`, and an unknown path with 404. Add this hook after the gate, which checks the
 * caller first.
 */
export function refuseUnknownRoutes(app: App): void {
  const routes = new KnownRoutes()
  app.addHook('onRoute', (route) => routes.add(route))
  app.setNotFoundHandler(routes.handle)
  app.addHook('onRequest', routes.refuseUnknown)
}

class KnownRoutes {
  readonly #methodsByPath = new Map<string, { pattern: RegExp; methods: Set<string> }>()

  add(route: RouteOptions): void {
    // Only browsers get a page at the root. For API clients it is no path of the API, whatever the method.
    if (route.url === '/') return
    const entry = this.#methodsByPath.get(route.url) ?? { pattern: patternOf(route.url), methods: new Set() }
    for (const method of [route.method].flat()) entry.methods.add(method)
    this.#methodsByPath.set(route.url, entry)
  }

  /** Before the body is read, so that a fault of the body does not hide that the path is wrong. */
  readonly refuseUnknown: onRequestHookHandler = (request, reply, done) => {
    if (request.is404 || hasEmptyParameter(request.params as Record<string, string>)) this.handle(request, reply)
    done()
  }

  readonly handle = (request: FastifyRequest, _reply: FastifyReply): never => {
    const path = pathOf(request.url)
    const allowed = new Set<string>()
    for (const { pattern, methods } of this.#methodsByPath.values()) {
      if (pattern.test(path)) for (const method of methods) allowed.add(method)
    }
    // A path with an empty parameter may also match a `*` route that allows this method. It is still an unknown path.
    if (allowed.size === 0 || allowed.has(request.method))
      throw new ApiError('not_found', `No such path${this.#pointerFor(path)}`)
    const allow = [...allowed].sort().join(', ')
    throw new ApiError('method_not_allowed', `${request.method} is not allowed here`, { headers: { allow } })
  }

  /** Some paths begin with /v1 and others do not: the likely mistake is named. */
  #pointerFor(path: string): string {
    if (path === '/') return ': the API reference is at /docs'
    const meant = path.startsWith('/v1/') ? path.slice('/v1'.length) : `/v1${path}`
    for (const [url, { pattern }] of this.#methodsByPath) {
      if (pattern.test(meant)) return `: did you mean ${url.replaceAll(/:(\w+)/g, '{$1}')}`
    }
    return ''
  }
}

/** The router lets an empty parameter match, as in `/v1/projects/`. The rest of a path (`*`) may be empty. */
function hasEmptyParameter(params: Record<string, string>): boolean {
  for (const name in params) if (params[name] === '' && name !== '*') return true
  return false
}

function patternOf(url: string): RegExp {
  const source = url
    .split('/')
    .map((part) => (part.startsWith(':') ? '[^/]+' : part === '*' ? '.*' : RegExp.escape(part)))
    .join('/')
  return new RegExp(`^${source}$`)
}
