import { ReadCoalescer } from '../../core/async/read-coalescer.ts'
import type { Database } from '../../db/database.ts'
import type { SizedJob, SlimJob } from '../job-row.ts'
import { findSizedJobs, findSlimJobs } from '../job-store.ts'

/** The documents of each job may have 256 KB, so one statement fetches no more than this many jobs. */
const MAX_BATCH = 20

/**
 * Finds single jobs for concurrent requests: those of one turn of the event loop share a few statements, which run one
 * after the other. Each request continues as soon as its own statement is done.
 */
export class JobReads {
  readonly #whole: BatchedReads<SizedJob>
  readonly #slim: BatchedReads<SlimJob>

  constructor(db: Database) {
    this.#whole = new BatchedReads((ids) => findSizedJobs(db, ids))
    this.#slim = new BatchedReads((ids) => findSlimJobs(db, ids))
  }

  /** Without its documents if they are large. */
  find(id: string): Promise<SizedJob | undefined> {
    return this.#whole.find(id)
  }

  /** For requests that do not answer with the documents. */
  findSlim(id: string): Promise<SlimJob | undefined> {
    return this.#slim.find(id)
  }
}

type Batch<Job> = Promise<ReadonlyMap<string, Job>>

class BatchedReads<Job extends { id: string }> {
  readonly #load: (ids: readonly string[]) => Promise<Job[]>
  readonly #reads = new ReadCoalescer<'jobs', ReadonlyMap<string, Batch<Job>>>()
  #wanted = new Set<string>()

  constructor(load: (ids: readonly string[]) => Promise<Job[]>) {
    this.#load = load
  }

  async find(id: string): Promise<Job | undefined> {
    this.#wanted.add(id)
    const batch = (await this.#reads.read('jobs', async () => this.#loadWanted())).get(id)
    return (await batch)?.get(id)
  }

  #loadWanted(): ReadonlyMap<string, Batch<Job>> {
    const ids = [...this.#wanted]
    this.#wanted = new Set()
    const batchOf = new Map<string, Batch<Job>>()
    let earlier: Promise<unknown> = Promise.resolve()
    for (let from = 0; from < ids.length; from += MAX_BATCH) {
      const wanted = ids.slice(from, from + MAX_BATCH)
      const batch = earlier.then(() => this.#loadBatch(wanted))
      for (const id of wanted) batchOf.set(id, batch)
      // A failed batch fails its own requests, not the next batch.
      earlier = batch.catch(() => {})
    }
    return batchOf
  }

  async #loadBatch(ids: readonly string[]): Batch<Job> {
    return new Map((await this.#load(ids)).map((job) => [job.id, job]))
  }
}
