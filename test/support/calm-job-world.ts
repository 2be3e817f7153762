import { randomUUID } from 'node:crypto'
import { beforeEach } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { NO_RUNTIME_FAULTS } from '../../src/sandbox/agent-runtime/faults.ts'
import { type JobWorld, type ShownJob, sharedJobWorld } from './job-world.ts'
import type { ServiceUnderTest } from './service.ts'

/**
 * One world for all tests of a block. Each test begins without faults and without an unfinished job, so that no job of
 * the test before is checked in it.
 */
export function calmJobWorld(under: ServiceUnderTest): () => Promise<JobWorld> {
  // Longer than the budget of a read, so that it is the budget that ends one.
  const shared = sharedJobWorld(under, { env: { RUNTIME_TIMEOUT_MS: '10000' } })
  beforeEach(async () => {
    const world = await shared()
    world.runtime.setFaults(NO_RUNTIME_FAULTS)
    const unfinished = sql`select id from jobs where status in ('processing', 'generating')`
    await world.sweepUntil(async () => (await world.db.query(unfinished)).length === 0, 5_000)
  })
  return shared
}

/** Ends all faults of the runtime, and closes the circuit breaker. */
export async function heal(world: JobWorld): Promise<void> {
  world.runtime.setFaults(NO_RUNTIME_FAULTS)
  await world.pass(5_000)
  const job = await world.start('report', { sub: newUser() })
  await world.sweepUntil(async () => isOver(await world.stored(job.id)), 5_000)
}

/** Whether the run of the job has ended; a job that awaits input counts. */
export function isOver({ status }: ShownJob): boolean {
  return status !== 'processing' && status !== 'generating'
}

/** A user of its own for each test, so that they can share a world. */
export function newUser(): string {
  return `user-${randomUUID()}`
}
