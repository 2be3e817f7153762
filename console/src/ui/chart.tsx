import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { exactTime } from './time.tsx'

export interface Series {
  label: string
  color: string
  values: (number | null)[]
}

interface ChartProps {
  title: string
  /** Unix seconds. */
  times: number[]
  series: Series[]
  unit?: string
  stacked?: boolean
}

/** Wide enough for the longest label of the axis. */
const widthOf = (labels: readonly string[] | null) =>
  Math.max(72, ...(labels ?? []).map(({ length }) => 16 + 8 * length))

const HEIGHT = 180

/** One chart over time. Screen readers get a table with the same numbers. */
export function Chart({ title, times, series, unit = '', stacked = false }: ChartProps) {
  const place = useRef<HTMLDivElement>(null)
  const plot = useRef<uPlot | null>(null)
  const labels = series.map(({ label }) => label).join()
  // Creates the chart once per set of lines. The effect below sets its data.
  useEffect(() => {
    const element = place.current
    if (!element) return
    const text = (value: number | null) => (value === null ? '–' : `${value.toLocaleString()}${unit}`)
    const axis = {
      stroke: () => colorOf('--muted'),
      grid: { stroke: () => colorOf('--line'), width: 1 },
      ticks: { show: false },
    }
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: HEIGHT,
        cursor: { y: false },
        legend: { live: true },
        scales: { y: { range: (_, __, max) => [0, Math.max(1, max * 1.1)] } },
        // The fill of a stacked line ends at the line below it.
        bands: stacked ? series.slice(1).map((_, index) => ({ series: [index + 1, index + 2] })) : [],
        axes: [
          axis,
          { ...axis, size: (_, labels) => widthOf(labels), values: (_, ticks) => ticks.map((tick) => text(tick)) },
        ],
        series: [
          {
            value: (_: uPlot, seconds: number | null) => (seconds === null ? 'latest' : exactTime(seconds * 1_000)),
          },
          ...series.map(({ label, color }, index) => ({
            label,
            stroke: () => colorOf(color),
            ...(stacked ? { fill: () => `color-mix(in srgb, ${colorOf(color)} 30%, transparent)` } : {}),
            width: 1.5,
            points: { show: true, size: 5, filter: (chart: uPlot, at: number) => lonely(chart.data[at] ?? []) },
            value: (_: uPlot, __: number, ___: number, at: number | null) =>
              text(plotted.current[index]?.values.at(at ?? -1) ?? null),
          })),
        ],
      },
      [[]],
      element,
    )
    plot.current = made
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }))
    observer.observe(element)
    const scheme = matchMedia('(prefers-color-scheme: dark)')
    const redraw = () => made.redraw()
    scheme.addEventListener('change', redraw)
    return () => {
      scheme.removeEventListener('change', redraw)
      observer.disconnect()
      made.destroy()
    }
  }, [labels, unit, stacked])
  const plotted = useRef(series)
  plotted.current = series
  useEffect(() => {
    plot.current?.setData([times, ...(stacked ? stack(series) : series.map(({ values }) => values))])
  })
  return (
    <section class="card" aria-label={title}>
      <h2>{title}</h2>
      <div ref={place} class="chart" aria-hidden="true" />
      <p class="hidden">{series.map(({ label, values }) => `${label}: ${lastOf(values)}${unit}`).join(', ')}</p>
    </section>
  )
}

/** The indexes of values without a neighbour. They need a dot, because no line shows them. */
function lonely(values: ArrayLike<number | null | undefined>): number[] {
  return Array.from(values, (value, at) => [value, values[at - 1], values[at + 1]])
    .map(([value, before, after], at) => (value != null && before == null && after == null ? at : -1))
    .filter((at) => at >= 0)
}

function colorOf(name: string): string {
  const probe = document.createElement('span')
  probe.style.color = `var(${name})`
  document.body.append(probe)
  const { color } = getComputedStyle(probe)
  probe.remove()
  return color
}

/** Stacks the series: each line is the sum of its series and all later ones. */
function stack(series: readonly Series[]): (number | null)[][] {
  const sums = series.map(({ values }) => [...values])
  for (let index = sums.length - 2; index >= 0; index--) {
    const above = sums[index + 1]
    sums[index] = (sums[index] ?? []).map((value, at) => (value ?? 0) + (above?.[at] ?? 0))
  }
  return sums
}

function lastOf(values: readonly (number | null)[]): string {
  return String(values.findLast((value) => value !== null) ?? 0)
}
