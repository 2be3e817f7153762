/** The port to tracing: features start spans here and do not depend on OpenTelemetry. `noTracer` costs nothing. */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | null>>

export interface SpanOptions {
  kind?: 'internal' | 'server' | 'client' | 'producer'
  /** The step that this one is part of, as a `traceparent`. Absent: the current span. Null: nothing is traced. */
  parent?: string | null
  /** Steps that caused this one some time ago, maybe in another process. */
  links?: readonly (string | null)[]
  attributes?: SpanAttributes
}

/** One step of a trace. A span that is never ended is never sent. */
export interface Span {
  /** For the W3C header of that name, and to continue the trace later; null when nothing is traced. */
  readonly traceparent: string | null
  set(attributes: SpanAttributes): void
  end(error?: unknown): void
}

export interface Tracer {
  /** The `traceparent` of the span that the caller runs in; null when there is none. */
  readonly current: string | null
  start(name: string, options?: SpanOptions): Span
  /** Calls `work` with this span as the current one, also in what it awaits. */
  within<Result>(span: Span, work: () => Result): Result
}

export const NO_SPAN: Span = { traceparent: null, set: () => {}, end: () => {} }

export const noTracer: Tracer = { current: null, start: () => NO_SPAN, within: (_span, work) => work() }

/** Runs `work` within the span, and ends the span with it. */
export async function inSpan<Result>(tracer: Tracer, span: Span, work: () => Promise<Result>): Promise<Result> {
  try {
    const result = await tracer.within(span, work)
    span.end()
    return result
  } catch (error) {
    span.end(error)
    throw error
  }
}

const TRACEPARENT = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/

interface TraceContext {
  traceId: string
  spanId: string
  traceFlags: number
}

/** Null for anything that is not a valid `traceparent` of version 00. */
export function parseTraceparent(text: unknown): TraceContext | null {
  const [, traceId, spanId, flags] = (typeof text === 'string' && TRACEPARENT.exec(text)) || []
  if (traceId === undefined || spanId === undefined || flags === undefined) return null
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) }
}

export function isSameTrace(one: string | null, other: string | null): boolean {
  const traceId = parseTraceparent(one)?.traceId
  return traceId !== undefined && traceId === parseTraceparent(other)?.traceId
}

/** For log lines. */
export function traceFields(traceparent: string | null): { traceId?: string } {
  const traceId = parseTraceparent(traceparent)?.traceId
  return traceId === undefined ? {} : { traceId }
}
