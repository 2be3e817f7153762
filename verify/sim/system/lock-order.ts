/** The tables whose rows are locked, in the order of locks. */
const TABLES = ['jobs', 'threads', 'job_checks']

/**
 * Watches the locks of one transaction. SQLite runs one transaction at a time, so none can deadlock here. On PostgreSQL
 * two could, unless all of them lock in one order: jobs by ascending id, then threads by ascending id, then checks.
 */
export class LockOrder {
  readonly #held = new Set<string>()
  #last = ''

  /** The fault in the order, if this statement locks rows too late. */
  note(text: string, rows: readonly Record<string, unknown>[]): string | undefined {
    const table = text.includes('/* for update */') ? TABLES.indexOf(/\bfrom (\w+)/.exec(text)?.[1] ?? '') : -1
    if (table === -1) return undefined
    let fault: string | undefined
    for (const { id = '' } of rows) {
      const place = `${table} ${id}`
      if (this.#held.has(place)) continue
      if (place < this.#last) fault ??= `${TABLES[table]} ${id} was locked after ${this.#last.slice(2)}`
      this.#held.add(place)
      this.#last = place
    }
    return fault
  }
}
