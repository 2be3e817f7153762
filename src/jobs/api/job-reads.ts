import { ReadCoalescer } from '../../core/async/read-coalescer.ts'
import type { Database } from '../../db/database.ts'
import type { JobRow } from '../job-row.ts'
import { findJobs } from '../job-store.ts'

/** An output may be many megabytes, so one statement fetches no more than this many jobs. */
const MAX_BATCH = 20

type Batch = Promise<ReadonlyMap<string, JobRow>>

/**
 * Finds single jobs for concurrent requests: those of one turn of the event loop share a few statements, which run one
 * after the other. Each request continues as soon as its own statement is done.
 */
export class JobReads {
  readonly #db: Database
  readonly #reads = new ReadCoalescer<'jobs', ReadonlyMap<string, Batch>>()
  #wanted = new Set<string>()

  constructor(db: Database) {
    this.#db = db
  }

  async find(id: string): Promise<JobRow | undefined> {
    this.#wanted.add(id)
    const batch = (await this.#reads.read('jobs', async () => this.#loadWanted())).get(id)
    return (await batch)?.get(id)
  }

  #loadWanted(): ReadonlyMap<string, Batch> {
    const ids = [...this.#wanted]
    this.#wanted = new Set()
    const batchOf = new Map<string, Batch>()
    let earlier: Promise<unknown> = Promise.resolve()
    for (let from = 0; from < ids.length; from += MAX_BATCH) {
      const wanted = ids.slice(from, from + MAX_BATCH)
      const batch = earlier.then(() => this.#load(wanted))
      for (const id of wanted) batchOf.set(id, batch)
      // A failed batch fails its own requests, not the next batch.
      earlier = batch.catch(() => {})
    }
    return batchOf
  }

  async #load(ids: readonly string[]): Batch {
    return new Map((await findJobs(this.#db, ids)).map((job) => [job.id, job]))
  }
}
