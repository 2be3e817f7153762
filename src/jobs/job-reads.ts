import { TurnShare } from '../core/turn-share.ts'
import type { Database } from '../db/database.ts'
import type { JobRow } from './job.ts'
import { findJobs } from './job-store.ts'

/** An output may be megabytes: one statement does not bring more of them than this. */
const MAX_BATCH = 50

/** Finds single jobs for many at once: what is asked for in one turn of the event loop travels in few statements. */
export class JobReads {
  readonly #db: Database
  readonly #turn = new TurnShare<'jobs', ReadonlyMap<string, JobRow>>()
  #wanted = new Set<string>()

  constructor(db: Database) {
    this.#db = db
  }

  async find(id: string): Promise<JobRow | undefined> {
    this.#wanted.add(id)
    const found = await this.#turn.ask('jobs', () => {
      const ids = [...this.#wanted]
      this.#wanted = new Set()
      return this.#load(ids)
    })
    return found.get(id)
  }

  async #load(ids: readonly string[]): Promise<ReadonlyMap<string, JobRow>> {
    const batches: Promise<JobRow[]>[] = []
    for (let from = 0; from < ids.length; from += MAX_BATCH) {
      batches.push(findJobs(this.#db, ids.slice(from, from + MAX_BATCH)))
    }
    const found = new Map<string, JobRow>()
    for (const jobs of await Promise.all(batches)) for (const job of jobs) found.set(job.id, job)
    return found
  }
}
