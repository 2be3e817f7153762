import { AsyncLocalStorage } from 'node:async_hooks'
import {
  createTraceState,
  type Link,
  type Span as OtelSpan,
  type Tracer as OtelTracer,
  ROOT_CONTEXT,
  type SpanContext,
  SpanKind,
  SpanStatusCode,
  type TraceState,
  trace,
} from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { defaultResource, detectResources, envDetector, resourceFromAttributes } from '@opentelemetry/resources'
import { BasicTracerProvider, BatchSpanProcessor } from '@opentelemetry/sdk-trace-node'
import type { Log } from '../core/log.ts'
import {
  NO_SPAN,
  parseTraceContext,
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

interface TracingOptions {
  endpoint: string
  version: string
  /** The attributes that tell this process from the others. */
  node: Record<string, string>
  log: Log
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
export function openTracing({ endpoint, version, node, log }: TracingOptions): OpenTracer {
  const named = resourceFromAttributes({ 'service.name': 'project-api', 'service.version': version, ...node })
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
    return this.#current.getStore()?.context ?? null
  }

  start(name: string, { kind = 'internal', parent, links = [], attributes = {} }: SpanOptions = {}): Span {
    if (parent === null) return NO_SPAN
    const before = remoteContext(parent ?? this.current)
    const context = before === null ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, before)
    const options = { kind: KINDS[kind], links: links.flatMap(toLink), attributes: toAttributes(attributes) }
    return new StartedSpan(this.#tracer.startSpan(name, options, context), before)
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

const RANDOM_FLAG = 0b10

class StartedSpan implements Span {
  readonly context: string
  readonly #span: OtelSpan

  constructor(span: OtelSpan, before: SpanContext | null) {
    const { traceId, spanId, traceFlags, traceState } = span.spanContext()
    // The SDK decides on the flag `sampled`, and does not know the flag `random`, which describes the id of the trace.
    const flags = traceFlags | ((before?.traceFlags ?? 0) & RANDOM_FLAG)
    const state = traceState?.serialize()
    this.context = `00-${traceId}-${spanId}-0${flags}${state ? ` ${state}` : ''}`
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

function toLink(text: string | null): Link[] {
  const context = remoteContext(text)
  return context === null ? [] : [{ context }]
}

function remoteContext(text: string | null): SpanContext | null {
  const parsed = parseTraceContext(text)
  if (parsed === null) return null
  const { tracestate, ...context } = parsed
  const traceState = tracestate === undefined ? undefined : validState(tracestate)
  return { ...context, isRemote: true, ...(traceState && { traceState }) }
}

/** The SDK leaves invalid and repeated entries out. Then nothing of the state can be trusted, as W3C says. */
function validState(tracestate: string): TraceState | undefined {
  const state = createTraceState(tracestate)
  const given = tracestate.split(',').filter((entry) => entry.trim() !== '')
  return state.serialize().split(',').length === given.length ? state : undefined
}

function toAttributes(attributes: SpanAttributes): Record<string, string | number | boolean> {
  const given = Object.entries(attributes).filter(
    (entry): entry is [string, string | number | boolean] => entry[1] !== null,
  )
  return Object.fromEntries(given)
}
