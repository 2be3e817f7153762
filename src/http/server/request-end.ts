import type { FastifyRequest } from 'fastify'
import type { App } from '../app-instance.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** To be called once, when the request is answered or shed. */
    releases: (() => void)[] | null
  }
}

/**
 * Releases what a request holds when its answer is ready, rather than when it was sent: a client that left does not end
 * our work. Every request that passes the first hook gets there, whatever becomes of it; streams must hold nothing.
 */
export function releaseAtEnd(app: App): void {
  app.decorateRequest('releases', null)
  app.addHook('onSend', (request, _reply, _payload, done) => {
    releaseNow(request)
    done()
  })
}

export function whenAnswered(request: FastifyRequest, release: () => void): void {
  request.releases ??= []
  request.releases.push(release)
}

/** For an answer that passes the framework, and so its hooks. */
export function releaseNow(request: FastifyRequest): void {
  const { releases } = request
  request.releases = null
  for (const release of releases ?? []) release()
}
