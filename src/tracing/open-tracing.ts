import { AsyncLocalStorage } from 'node:async_hooks'
import {
  type Link,
  type Span as OtelSpan,
  type Tracer as OtelTracer,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  trace,
} from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { defaultResource, detectResources, envDetector, resourceFromAttributes } from '@opentelemetry/resources'
import { BasicTracerProvider, BatchSpanProcessor } from '@opentelemetry/sdk-trace-node'
import type { Log } from '../core/log.ts'
import {
  NO_SPAN,
  parseTraceparent,
  type Span,
  type SpanAttributes,
  type SpanOptions,
  type Tracer,
} from '../core/tracing.ts'
import { ReportingExporter } from './reporting-exporter.ts'

export interface OpenTracer extends Tracer {
  /** Sends the spans that have ended. */
  flush(): Promise<void>
  /** Sends the last spans and stops. */
  close(): Promise<void>
}

const KINDS = {
  internal: SpanKind.INTERNAL,
  server: SpanKind.SERVER,
  client: SpanKind.CLIENT,
  producer: SpanKind.PRODUCER,
} as const

/**
 * Sends spans to an OpenTelemetry collector over HTTP, in batches and in the background. If the collector is unavailable,
 * only spans are lost. The SDK reads the other `OTEL_…` variables itself.
 */
export function openTracing({ endpoint, version, log }: { endpoint: string; version: string; log: Log }): OpenTracer {
  const named = resourceFromAttributes({ 'service.name': 'project-api', 'service.version': version })
  const provider = new BasicTracerProvider({
    resource: defaultResource()
      .merge(named)
      .merge(detectResources({ detectors: [envDetector] })),
    spanProcessors: [
      new BatchSpanProcessor(new ReportingExporter(new OTLPTraceExporter({ url: `${endpoint}/v1/traces` }), log)),
    ],
  })
  return new SpanTracer(provider.getTracer('project-api', version), provider)
}

class SpanTracer implements OpenTracer {
  readonly #tracer: OtelTracer
  readonly #provider: BasicTracerProvider
  readonly #current = new AsyncLocalStorage<Span>()

  constructor(tracer: OtelTracer, provider: BasicTracerProvider) {
    this.#tracer = tracer
    this.#provider = provider
  }

  get current(): string | null {
    return this.#current.getStore()?.traceparent ?? null
  }

  start(name: string, { kind = 'internal', parent, links = [], attributes = {} }: SpanOptions = {}): Span {
    if (parent === null) return NO_SPAN
    const parentContext = parseTraceparent(parent ?? this.current)
    const context = parentContext === null ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, remote(parentContext))
    const options = { kind: KINDS[kind], links: links.flatMap(toLink), attributes: toAttributes(attributes) }
    return new StartedSpan(this.#tracer.startSpan(name, options, context))
  }

  within<Result>(span: Span, work: () => Result): Result {
    return span === NO_SPAN ? work() : this.#current.run(span, work)
  }

  flush(): Promise<void> {
    return this.#provider.forceFlush()
  }

  close(): Promise<void> {
    return this.#provider.shutdown()
  }
}

class StartedSpan implements Span {
  readonly traceparent: string
  readonly #span: OtelSpan

  constructor(span: OtelSpan) {
    const { traceId, spanId, traceFlags } = span.spanContext()
    this.traceparent = `00-${traceId}-${spanId}-${traceFlags.toString(16).padStart(2, '0')}`
    this.#span = span
  }

  set(attributes: SpanAttributes): void {
    this.#span.setAttributes(toAttributes(attributes))
  }

  /** Only the error's name is sent: its message may quote an address or a document. */
  end(error?: unknown): void {
    if (error !== undefined) {
      this.#span.setStatus({ code: SpanStatusCode.ERROR })
      this.#span.setAttribute('error.type', error instanceof Error ? error.name : 'unknown')
    }
    this.#span.end()
  }
}

function toLink(traceparent: string | null): Link[] {
  const context = parseTraceparent(traceparent)
  return context === null ? [] : [{ context: remote(context) }]
}

function remote<Context>(context: Context): Context & { isRemote: true } {
  return { ...context, isRemote: true }
}

function toAttributes(attributes: SpanAttributes): Record<string, string | number | boolean> {
  const given = Object.entries(attributes).filter(
    (entry): entry is [string, string | number | boolean] => entry[1] !== null,
  )
  return Object.fromEntries(given)
}
