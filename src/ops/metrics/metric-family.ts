export type Labels = Readonly<Record<string, string>>

/** More series than any honest use of a metric has: what would come after them shares one. */
const MAX_SERIES = 1_000
const OVERFLOW = 'other'

interface Branch<Series> {
  children: Map<string | undefined, Branch<Series>>
  series: Series | undefined
}

/**
 * The series of one metric, found by the values of its labels without building a key: label by label down a tree. Their
 * number is bounded.
 */
export class MetricFamily<Series> {
  readonly #labelNames: readonly string[]
  readonly #create: () => Series
  readonly #root = newBranch<Series>()
  readonly #all: { labels: Labels; series: Series }[] = []
  #overflow: Series | undefined
  #lastLabels: Labels | undefined
  #lastSeries: Series | undefined

  constructor(labelNames: readonly string[], create: () => Series) {
    this.#labelNames = labelNames
    this.#create = create
    // Without labels there is one series, and it begins at zero rather than with its first event.
    if (labelNames.length === 0) this.seriesOf({})
  }

  get all(): readonly { labels: Labels; series: Series }[] {
    return this.#all
  }

  /** Labels are taken as constants: whoever passes the same object again means the same series. */
  seriesOf(labels: Labels): Series {
    if (labels === this.#lastLabels && this.#lastSeries !== undefined) return this.#lastSeries
    const names = this.#labelNames
    let branch: Branch<Series> | undefined = this.#root
    for (let i = 0; i < names.length && branch; i++) branch = branch.children.get(labels[names[i] as string])
    const series = branch?.series ?? this.#add(labels)
    this.#lastLabels = labels
    this.#lastSeries = series
    return series
  }

  #add(labels: Labels): Series {
    if (this.#all.length >= MAX_SERIES) {
      this.#overflow ??= this.#keep(Object.fromEntries(this.#labelNames.map((name) => [name, OVERFLOW])))
      return this.#overflow
    }
    let branch = this.#root
    for (const name of this.#labelNames) {
      const child = branch.children.get(labels[name]) ?? newBranch<Series>()
      branch.children.set(labels[name], child)
      branch = child
    }
    branch.series = this.#keep({ ...labels })
    return branch.series
  }

  #keep(labels: Labels): Series {
    const series = this.#create()
    this.#all.push({ labels, series })
    return series
  }
}

function newBranch<Series>(): Branch<Series> {
  return { children: new Map(), series: undefined }
}
