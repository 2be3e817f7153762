/**
 * The port to tracing: features start spans here and do not depend on OpenTelemetry. `noTracer` costs nothing. A trace
 * context is kept as one text: a `traceparent` of W3C, and after a blank the `tracestate`, if there is one.
 */
export type SpanAttributes = Readonly<Record<string, string | number | boolean | null>>

export interface SpanOptions {
  kind?: 'internal' | 'server' | 'client' | 'producer'
  /** The trace context of the step that this one is part of. Absent: the current span. Null: nothing is traced. */
  parent?: string | null
  /** Steps that caused this one some time ago, maybe in another process. */
  links?: readonly (string | null)[]
  attributes?: SpanAttributes
}

/** One step of a trace. A span that is never ended is never sent. */
export interface Span {
  /** The trace context, to continue the trace later and elsewhere; null when nothing is traced. */
  readonly context: string | null
  set(attributes: SpanAttributes): void
  end(error?: unknown): void
}

export interface Tracer {
  /** The trace context of the span that the caller runs in; null when there is none. */
  readonly current: string | null
  start(name: string, options?: SpanOptions): Span
  /** Calls `work` with this span as the current one, also in what it awaits. */
  within<Result>(span: Span, work: () => Result): Result
}

export const NO_SPAN: Span = { context: null, set: () => {}, end: () => {} }

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

const TRACEPARENT = /^(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32})-((?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/
/** `sampled` and `random`. */
const KNOWN_FLAGS = 0b11
/** All that a later version of the standard promises to keep. */
const LASTING_FLAGS = 0b01

/** The trace context in these headers. Null if they have none that is valid. The tracer validates the `tracestate`. */
export function readTraceHeaders({ traceparent, tracestate }: Record<string, unknown>): string | null {
  const [, version, traceId, spanId, flags = '', rest] =
    (typeof traceparent === 'string' && TRACEPARENT.exec(traceparent)) || []
  if (version === undefined || (version === '00' && rest !== undefined)) return null
  const known = Number.parseInt(flags, 16) & (version === '00' ? KNOWN_FLAGS : LASTING_FLAGS)
  return `00-${traceId}-${spanId}-0${known}${typeof tracestate === 'string' && tracestate !== '' ? ` ${tracestate}` : ''}`
}

export function traceHeaders(context: string | null): { traceparent?: string; tracestate?: string } {
  if (context === null) return {}
  const [, traceparent = '', tracestate] = /^(\S*) ?(.*)$/.exec(context) ?? []
  return { traceparent, ...(tracestate && { tracestate }) }
}

interface TraceContext {
  traceId: string
  spanId: string
  traceFlags: number
  tracestate: string | undefined
}

export function parseTraceContext(context: string | null): TraceContext | null {
  const { traceparent, tracestate } = traceHeaders(context)
  const [, , traceId, spanId, flags = ''] = TRACEPARENT.exec(traceparent ?? '') ?? []
  if (traceId === undefined || spanId === undefined) return null
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16), tracestate }
}

export function isSameTrace(one: string | null, other: string | null): boolean {
  const traceId = parseTraceContext(one)?.traceId
  return traceId !== undefined && traceId === parseTraceContext(other)?.traceId
}

/** For log lines. */
export function traceFields(context: string | null): { traceId?: string } {
  const traceId = parseTraceContext(context)?.traceId
  return traceId === undefined ? {} : { traceId }
}
