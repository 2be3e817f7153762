import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'

interface Attribute {
  key: string
  value: { stringValue?: string; intValue?: number | string; boolValue?: boolean }
}

export interface ReceivedSpan {
  traceId: string
  spanId: string
  parentSpanId?: string
  name: string
  kind: number
  traceState?: string
  links?: { traceId: string; spanId: string }[]
  attributes: Attribute[]
}

interface ExportRequest {
  resourceSpans: { resource: { attributes: Attribute[] }; scopeSpans: { spans: ReceivedSpan[] }[] }[]
}

export interface TraceCollector {
  endpoint: string
  /** Every span that arrived. */
  spans: ReceivedSpan[]
  /** The names of the services that sent them. */
  services: Set<string>
  /** What each request says of its sender. */
  resources: { attributes: Attribute[] }[]
  /** Answers 503 from now on, which exporters retry, or 400, which they do not. */
  refuseWith(status: number | null): void
  requests(): number
  close(): Promise<void>
}

/** An OpenTelemetry collector on loopback: decodes OTLP over HTTP as it arrives. */
export async function startTraceCollector(): Promise<TraceCollector> {
  const spans: ReceivedSpan[] = []
  const services = new Set<string>()
  const resources: TraceCollector['resources'] = []
  let refusal: number | null = null
  let requests = 0
  const server = createServer(async (request, response) => {
    requests += 1
    const body = await text(request)
    if (request.url !== '/v1/traces' || refusal !== null) return response.writeHead(refusal ?? 404).end()
    for (const { resource, scopeSpans } of (JSON.parse(body) as ExportRequest).resourceSpans) {
      resources.push(resource)
      services.add(String(attributeOf(resource, 'service.name')))
      for (const scope of scopeSpans) spans.push(...scope.spans)
    }
    response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    services,
    resources,
    refuseWith: (status) => {
      refusal = status
    },
    requests: () => requests,
    close: async () => {
      server.closeAllConnections()
      server.close()
    },
  }
}

export function attributeOf(
  { attributes }: { attributes: Attribute[] },
  key: string,
): string | number | boolean | null {
  const value = attributes.find((attribute) => attribute.key === key)?.value
  return value?.stringValue ?? value?.intValue ?? value?.boolValue ?? null
}

/** One line per span of the trace, indented below its parent; `~` marks a link to an earlier span of the same trace. */
export function treeOf(spans: readonly ReceivedSpan[], traceId: string): string[] {
  const ours = spans.filter((span) => span.traceId === traceId)
  const known = new Set(ours.map(({ spanId }) => spanId))
  const lines: string[] = []
  const visit = (parent: string | undefined, depth: number) => {
    for (const span of ours) {
      const { parentSpanId = '' } = span
      const isChild = parent === undefined ? !known.has(parentSpanId) : parentSpanId === parent
      if (!isChild) continue
      const isLinked = span.links?.some((link) => link.traceId === traceId) ?? false
      lines.push(`${'  '.repeat(depth)}${isLinked ? '~ ' : ''}${span.name}`)
      visit(span.spanId, depth + 1)
    }
  }
  visit(undefined, 0)
  return lines
}
