import type { Row, Transaction } from '../../../src/db/database.ts'
import { type Sql, sql } from '../../../src/db/sql.ts'

/**
 * The tables whose rows are locked, in the order of locks, with the column of the id. `guard`: a row that transactions lock
 * before they lock this one and wait for more. The lock of a job guards its check, and that of a thread guards the threads
 * that it replaced. So a transaction that holds the guard may lock the row in any order.
 */
const TABLES = {
  jobs: { id: 'id', guard: "''" },
  threads: { id: 'id', guard: "coalesce('1 ' || old.replaced_by, '')" },
  job_checks: { id: 'job_id', guard: "'0 ' || old.job_id" },
}
const NAMES = Object.keys(TABLES)

const IS_WRITE = new RegExp(`^\\s*(?:with|insert|update|delete)\\b[^]*\\b(?:${NAMES.join('|')})\\b`, 'i')
const SKIPS_LOCKED = '/* for update skip locked */'

/**
 * Triggers that note each row that a statement changes or deletes, because it locks that row. No other transaction sees an
 * inserted row before the commit.
 */
export const LOCK_TRIGGERS = [
  'create table sim_locked_rows (n integer primary key autoincrement, place text not null, guard text not null, is_new integer not null);',
  ...Object.entries(TABLES).flatMap(([table, { id, guard }], rank) =>
    (['update', 'delete', 'insert'] as const).map((change) => {
      const row = change === 'insert' ? `new.${id}, '', 1` : `old.${id}, ${guard}, 0`
      return `create trigger sim_${table}_locked_by_${change} after ${change} on ${table} begin
  insert into sim_locked_rows (place, guard, is_new) values ('${rank} ' || ${row});
end;`
    }),
  ),
].join('\n')

type WrittenRow = { n: number; place: string; guard: string; is_new: number }

/**
 * Watches the locks of one transaction. SQLite runs one transaction at a time, so none can deadlock here. On PostgreSQL
 * two could, unless all of them lock in one order: jobs by ascending id, then threads by ascending id, then checks. A
 * statement that writes several rows locks them in any order, so at most one of them may be new to the transaction.
 */
export class LockOrder {
  readonly #tx: Pick<Transaction, 'query'>
  readonly #held = new Set<string>()
  #last = ''
  #hasWritten = false

  constructor(tx: Pick<Transaction, 'query'>) {
    this.#tx = tx
  }

  /** Runs the statement. `onFault` learns of a lock that it takes too late. */
  async run<R extends Row>(statement: Sql, onFault: (what: string) => void): Promise<R[]> {
    const { text } = statement
    const isWrite = IS_WRITE.test(text)
    if (isWrite && !this.#hasWritten) {
      this.#hasWritten = true
      // Statements outside transactions have left theirs.
      await this.#tx.query(sql`delete from sim_locked_rows`)
    }
    const rows = await this.#tx.query<R>(statement)
    const written = isWrite ? await this.#takeWritten() : []
    const fault = isWrite ? this.#noteWritten(text, written) : this.#noteSelected(text, rows)
    if (fault) onFault(fault)
    return rows
  }

  /** The rows that the last statement wrote and that the transaction did not hold before. */
  async #takeWritten(): Promise<string[]> {
    const rows = await this.#tx.query<WrittenRow>(sql`delete from sim_locked_rows returning n, place, guard, is_new`)
    for (const { place, guard, is_new } of rows) if (is_new === 1 || this.#held.has(guard)) this.#held.add(place)
    const added = rows.toSorted((a, b) => a.n - b.n).filter(({ place }) => !this.#held.has(place))
    return [...new Set(added.map(({ place }) => place))]
  }

  #noteWritten(text: string, added: readonly string[]): string | undefined {
    // Such a statement never waits for a lock.
    if (text.includes(SKIPS_LOCKED)) {
      for (const place of added) this.#hold(place)
      return undefined
    }
    const faults = added.map((place) => this.#take(place, text))
    const isUnordered = NAMES.some((_, rank) => added.filter((place) => place.startsWith(`${rank} `)).length > 1)
    return isUnordered ? `one statement locked ${shown(added)} in any order: ${text}` : faults.find(Boolean)
  }

  #noteSelected(text: string, rows: readonly Row[]): string | undefined {
    const locks = /\/\* for update (?:skip locked )?\*\//.test(text)
    const rank = locks ? NAMES.indexOf(/\bfrom (\w+)/.exec(text)?.[1] ?? '') : -1
    if (rank === -1) return undefined
    const places = rows.map(({ id, job_id }) => `${rank} ${(rank === 2 ? job_id : id) ?? ''}`)
    if (text.includes(SKIPS_LOCKED)) {
      for (const place of places) this.#hold(place)
      return undefined
    }
    const faults = places.filter((place) => !this.#held.has(place)).map((place) => this.#take(place, text))
    return faults.find(Boolean)
  }

  #take(place: string, text: string): string | undefined {
    const last = this.#last
    this.#hold(place)
    return place < last ? `${shown([place])} was locked after ${shown([last])} by ${text}` : undefined
  }

  #hold(place: string): void {
    this.#held.add(place)
    if (place > this.#last) this.#last = place
  }
}

function shown(places: readonly string[]): string {
  return places.map((place) => `${NAMES[Number(place[0])]} ${place.slice(2)}`).join(', ')
}
