import type { FastifyRequest } from 'fastify'
import { noTracer, readTraceHeaders, type Span, type SpanOptions, type Tracer } from '../../core/tracing.ts'
import type { App } from '../app-instance.ts'

declare module 'fastify' {
  interface FastifyRequest {
    span: Span | null
  }
}

/**
 * Starts one span per request; every later hook and the handler run in it. Public routes have no span, because most spans
 * would come from probes. A caller's trace is continued.
 */
export function traceRequests(app: App, tracer: Tracer): void {
  if (tracer === noTracer) return
  app.decorateRequest('span', null)
  app.addHook('onRequest', (request, _reply, done) => {
    const { config, url } = request.routeOptions
    if (config.access === undefined || config.access.kind === 'public') return done()
    request.span = tracer.start(`${request.method} ${url}`, {
      kind: 'server',
      ...causeOf(request),
      attributes: { 'http.request.method': request.method, 'http.route': url ?? null, 'request.id': request.id },
    })
    tracer.within(request.span, done)
  })
  // Reading the body leaves the context of the hook above.
  app.addHook('preValidation', (request, _reply, done) => {
    if (request.span === null) done()
    else tracer.within(request.span, done)
  })
  app.addHook('onResponse', (request, reply, done) => {
    const { span } = request
    if (span === null) return done()
    const { statusCode } = reply
    span.set({ 'http.response.status_code': statusCode })
    span.end(statusCode >= 500 ? new Error(`status ${statusCode}`) : undefined)
    // The line of the request log is part of the trace.
    tracer.within(span, done)
  })
}

/**
 * The cause of a request: its `traceparent` header. For a runtime that sends no header, the callback URL has the trace of
 * the job's start. That trace is also linked, because the start may be long ago.
 */
function causeOf({ headers, query, routeOptions }: FastifyRequest): Pick<SpanOptions, 'parent' | 'links'> {
  const given = readTraceHeaders(headers)
  if (given !== null) return { parent: given }
  if (routeOptions.config.access?.kind !== 'callback') return {}
  const { traceparent } = query as Record<string, unknown>
  const started = readTraceHeaders({ traceparent })
  return started === null ? {} : { parent: started, links: [started] }
}
