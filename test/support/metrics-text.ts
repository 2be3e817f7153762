import assert from 'node:assert/strict'
import { fullName } from '../../src/ops/metrics/metrics.ts'

export interface ParsedSample {
  /** With the suffix of a histogram's part. */
  name: string
  labels: Record<string, string>
  value: number
}

export interface ParsedMetric {
  type: string
  help: string
  samples: ParsedSample[]
}

const HEAD = /^# (HELP|TYPE) ([a-zA-Z_:][\w:]*) (.+)$/
const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (-?(?:\d+(?:\.\d+)?(?:e[+-]?\d+)?|Inf)|\+Inf|NaN)$/
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\[\\n"])*)"(?:,|$)/y
const PARTS = /_(?:bucket|sum|count)$/

/** Prometheus' text format, read as strictly as its own parser does: fails on a line that it would refuse. */
export class MetricsText {
  readonly metrics = new Map<string, ParsedMetric>()

  constructor(text: string) {
    assert.ok(text.endsWith('\n'), 'the last line must end')
    for (const line of text.slice(0, -1).split('\n')) this.#read(line)
    const seen = new Set<string>()
    for (const { name, labels } of this.samples) {
      const series = `${name} ${JSON.stringify(Object.entries(labels).sort())}`
      assert.ok(!seen.has(series), `${series} comes twice`)
      seen.add(series)
    }
  }

  get samples(): ParsedSample[] {
    return [...this.metrics.values()].flatMap(({ samples }) => samples)
  }

  /** The sum over all series that have these labels; 0 when there is none. */
  sum(name: string, labels: Record<string, string> = {}): number {
    const wanted = Object.entries(labels)
    return this.samples
      .filter((sample) => sample.name === fullName(name))
      .filter((sample) => wanted.every(([label, value]) => sample.labels[label] === value))
      .reduce((sum, { value }) => sum + value, 0)
  }

  #read(line: string): void {
    const head = HEAD.exec(line)
    if (head) {
      const [, kind = '', name = '', text = ''] = head
      const metric = this.metrics.get(name) ?? { type: '', help: '', samples: [] }
      assert.equal(metric.samples.length, 0, `${name} is described after its samples`)
      this.metrics.set(name, kind === 'HELP' ? { ...metric, help: text } : { ...metric, type: text })
      return
    }
    const [, name = '', labels = '', value = ''] = SAMPLE.exec(line) ?? assert.fail(`not a sample: ${line}`)
    const metric = this.metrics.get(name) ?? this.metrics.get(name.replace(PARTS, ''))
    assert.ok(metric?.type && metric.help, `${name} is not described`)
    assert.equal([...this.metrics.values()].at(-1), metric, `${name} is not in one piece`)
    metric.samples.push({ name, labels: readLabels(labels), value: Number(value.replace('Inf', 'Infinity')) })
  }
}

function readLabels(text: string): Record<string, string> {
  const labels: Record<string, string> = {}
  LABEL.lastIndex = 0
  for (let at = 0; at < text.length; at = LABEL.lastIndex) {
    const [, name = '', value = ''] = LABEL.exec(text) ?? assert.fail(`not labels: ${text}`)
    assert.ok(!Object.hasOwn(labels, name), `${name} comes twice in ${text}`)
    labels[name] = value.replace(/\\(.)/g, (_, escaped) => (escaped === 'n' ? '\n' : escaped))
  }
  return labels
}
