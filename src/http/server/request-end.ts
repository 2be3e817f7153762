import type { FastifyRequest } from 'fastify'
import type { App } from '../app-instance.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Called once, when the request is answered or shed. */
    releases: (() => void)[] | null
  }
}

/**
 * Releases the resources of a request when its answer is ready, not when it was sent: the work goes on even if the client
 * disconnects. This happens for every request that passes the first hook. Streams must not hold resources.
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

/** For an answer that bypasses the framework and thus its hooks. */
export function releaseNow(request: FastifyRequest): void {
  const { releases } = request
  request.releases = null
  for (const release of releases ?? []) release()
}
