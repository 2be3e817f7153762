import type { ReadableSpan, SpanExporter } from '@opentelemetry/sdk-trace-node'
import type { Log } from '../core/log.ts'

type ExportResult = Parameters<Parameters<SpanExporter['export']>[1]>[0]

/** Logs the first of several failed exports, and the first success after them. */
export class ReportingExporter implements SpanExporter {
  readonly #exporter: SpanExporter
  readonly #log: Log
  #isFailing = false

  constructor(exporter: SpanExporter, log: Log) {
    this.#exporter = exporter
    this.#log = log
  }

  export(spans: ReadableSpan[], done: (result: ExportResult) => void): void {
    this.#exporter.export(spans, (result) => {
      this.#report(result)
      done(result)
    })
  }

  async shutdown(): Promise<void> {
    await this.#exporter.shutdown()
  }

  async forceFlush(): Promise<void> {
    await this.#exporter.forceFlush?.()
  }

  #report({ code, error }: ExportResult): void {
    const hasFailed = code !== 0
    if (hasFailed === this.#isFailing) return
    this.#isFailing = hasFailed
    if (hasFailed) this.#log.warn({ err: error }, 'traces.export_failed')
    else this.#log.info({}, 'traces.export_recovered')
  }
}
