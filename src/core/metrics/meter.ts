import type { COUNTERS, HISTOGRAMS } from './metric-table.ts'

export type CounterName = keyof typeof COUNTERS
export type HistogramName = keyof typeof HISTOGRAMS

type Table = Record<string, { labels: readonly string[] }>
type LabelsOf<T extends Table, Name extends keyof T> = Readonly<Record<T[Name]['labels'][number], string>>
type Plain<T extends Table> = { [Name in keyof T]: T[Name]['labels'] extends readonly [] ? Name : never }[keyof T]

export type CounterLabels<Name extends CounterName> = LabelsOf<typeof COUNTERS, Name>
type HistogramLabels<Name extends HistogramName> = LabelsOf<typeof HISTOGRAMS, Name>

/**
 * Counts and measures for every layer. It never fails and never waits. On hot paths the labels are constants, so that
 * counting allocates nothing.
 */
export interface Meter {
  count(name: Plain<typeof COUNTERS>, labels?: undefined, by?: number): void
  count<Name extends CounterName>(name: Name, labels: CounterLabels<Name>, by?: number): void
  observe(name: Plain<typeof HISTOGRAMS>, value: number): void
  observe<Name extends HistogramName>(name: Name, value: number, labels: HistogramLabels<Name>): void
}

export const silentMeter: Meter = { count: () => {}, observe: () => {} }
