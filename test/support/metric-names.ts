import { COUNTERS, HISTOGRAMS } from '../../src/core/metrics/metric-table.ts'
import { fullName } from '../../src/ops/metrics/metrics.ts'
import { READINGS } from '../../src/ops/metrics/reading-table.ts'

/** The pattern of every name of a metric. */
export const METRIC = '\\b(?:project_api|process|nodejs)_[a-z_]+'

export interface DescribedMetric {
  type: string
  labels: string[]
}

/** Every metric of the service, by its full name. */
export const METRICS: ReadonlyMap<string, DescribedMetric> = new Map([
  ...describeAll(COUNTERS, () => 'counter'),
  ...describeAll(HISTOGRAMS, () => 'histogram'),
  ...describeAll(READINGS, ({ type }) => type),
])

function describeAll<Spec extends { labels: readonly string[] }>(
  table: Record<string, Spec>,
  typeOf: (spec: Spec) => string,
): [string, DescribedMetric][] {
  return Object.entries(table).map(([name, spec]) => [fullName(name), { type: typeOf(spec), labels: [...spec.labels] }])
}

/** Every metric that a text names, with the parts of histograms under the histogram's own name. */
export function metricsIn(text: string): Set<string> {
  const named = text.match(new RegExp(METRIC, 'g')) ?? []
  return new Set(named.map((name) => (METRICS.has(name) ? name : name.replace(/_(?:bucket|sum|count)$/, ''))))
}
