import { CallbackAuthenticity } from '../auth/callback-authenticity.ts'
import { systemClock } from '../core/clock.ts'
import { ApiError } from '../core/errors.ts'
import { IdGenerator } from '../core/ids.ts'
import { silentLog } from '../core/log.ts'
import { systemRandom } from '../core/random.ts'
import type { Database } from '../db/database.ts'
import { Node } from '../db/nodes/node.ts'
import { noteIdentity } from '../jobs/identity-store.ts'
import { createJobServices } from '../jobs/job-services.ts'
import { bulkActions } from '../operations/bulk-actions.ts'
import { notDoneOf, toFailure, toOperation } from '../operations/operation-routes.ts'
import { OperationRunner } from '../operations/operation-runner.ts'
import type { BulkOperation, OperationFailure } from '../operations/operation-schema.ts'
import { findFailurePage, findOperation, type OperationFailureRow } from '../operations/operation-store.ts'
import { recoverAction } from '../operations/recover-webhooks.ts'
import { eraseAction, startErasure } from '../people/erase-user.ts'
import { findRefusal } from '../users/user-state-store.ts'
import { hasPushTurnedOff } from '../users/user-store.ts'
import { explainInUse } from './client/find-service.ts'
import { type FollowOptions, followOperation } from './client/follow-operation.ts'
import type { CommandLine } from './io.ts'
import { commandLineOrigin } from './startup/command-line-origin.ts'
import { loadSettings } from './startup/load-job-types.ts'
import { openMigratedDatabase } from './startup/open-database.ts'

const FAILURES_AT_ONCE = 1_000

/**
 * Erases a user where no service runs: this process does the work of the service, for this operation only. It starts no
 * sweep, so that no other job is processed.
 */
export async function eraseOnDatabase(
  line: CommandLine,
  sub: string,
  follow: Omit<FollowOptions, 'read' | 'readFailures'>,
): Promise<void> {
  const { config, jobTypes: types } = loadSettings(line)
  const opened = await openMigratedDatabase(config.database).catch(explainInUse)
  const { db } = opened
  const node = await Node.start({ db, clock: systemClock, random: systemRandom, log: silentLog })
  const { clock } = node
  if (config.runtime !== null) await noteIdentity(db, config.runtimeIdentity, clock.now())
  const ids = new IdGenerator(clock, systemRandom)
  const own = { db, node, clock, random: systemRandom, log: silentLog }
  const services = createJobServices({
    ...own,
    ids,
    types,
    pushOptOut: hasPushTurnedOff,
    findRefusal,
    fetch,
    runtime: config.runtime,
    runtimeIdentity: config.runtimeIdentity,
    publicUrl: config.publicUrl,
    usageLimitRuns: config.usageLimitRuns,
    maxUnfinishedJobs: config.maxUnfinishedJobs,
    callbackAuthenticity: new CallbackAuthenticity(config.webhookSecrets, clock),
    sweeps: false,
  })
  const actions = { ...bulkActions(services), erase: eraseAction(services), recover: recoverAction({ db, clock }) }
  let runner: OperationRunner | undefined
  try {
    const started = await startErasure(db, { ids, clock }, { sub, by: commandLineOrigin() })
    if (!started) throw new ApiError('not_found', 'No such user')
    runner = new OperationRunner({ ...own, actions, only: started.id })
    const read = async (): Promise<BulkOperation> => {
      const operation = (await findOperation(db, started.id)) ?? started
      return toOperation(operation, await notDoneOf(db, [operation]))
    }
    await followOperation(line, toOperation(started), {
      ...follow,
      read,
      readFailures: () => failuresOf(db, started.id),
    })
  } finally {
    await runner?.close()
    await services.close()
    await node.close()
    await opened.close()
  }
}

async function* failuresOf(db: Database, id: string): AsyncGenerator<OperationFailure> {
  for (let after: readonly [number] | null = null; ; ) {
    const page: OperationFailureRow[] = await findFailurePage(db, id, { after, limit: FAILURES_AT_ONCE })
    yield* page.slice(0, FAILURES_AT_ONCE).map(toFailure)
    const last = page[FAILURES_AT_ONCE - 1]
    if (!last || page.length <= FAILURES_AT_ONCE) return
    after = [last.place]
  }
}
