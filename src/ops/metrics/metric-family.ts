export type Labels = Readonly<Record<string, string>>

/** Far above normal use. All label values beyond this number share one series. */
const MAX_SERIES = 1_000
const OVERFLOW = 'other'

interface Branch<Series> {
  children: Map<string | undefined, Branch<Series>>
  series: Series | undefined
}

/**
 * The series of one metric, by the values of its labels. They are kept in a tree, one level per label, so that a lookup
 * does not build a key. The number of series is bounded.
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
    // A metric without labels has one series. It is created now, so that it shows zero before the first event.
    if (labelNames.length === 0) this.seriesOf({})
  }

  get all(): readonly { labels: Labels; series: Series }[] {
    return this.#all
  }

  /** Callers must not change a labels object: the same object always means the same series. */
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
