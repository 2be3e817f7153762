import { systemRandom } from '../core/random.ts'
import { bulkActions } from '../operations/bulk-actions.ts'
import { toOperation } from '../operations/operation-routes.ts'
import { OperationRunner } from '../operations/operation-runner.ts'
import { MAX_SHOWN_FAILURES } from '../operations/operation-schema.ts'
import { findFailures, findOperation, type OperationRow } from '../operations/operation-store.ts'
import { eraseAction, startErasure } from '../people/erase-user.ts'
import { CommandError, type CommandLine, type ExitCode } from './io.ts'
import { commandLineOrigin } from './startup/command-line-origin.ts'
import { withJobServices } from './startup/with-job-services.ts'

const EVERY_MS = 500

/** Erases a user and waits until it finishes. If the command is interrupted, the service continues the erasure. */
export function eraseUser(line: CommandLine, { sub, json }: { sub: string; json: boolean }): Promise<ExitCode> {
  return withJobServices(line, async (services, { db, node }) => {
    const { clock, log, ids } = services.jobContext
    const started = await startErasure(db, { ids, clock }, { sub, by: commandLineOrigin() })
    if (!started) throw new CommandError(`There is no user ${sub}`)
    const actions = { ...bulkActions(services), erase: eraseAction(services) }
    const runner = new OperationRunner({ db, node, clock, random: systemRandom, log, actions, only: started.id })
    try {
      for (let shown: OperationRow | undefined; !line.stopping.aborted; ) {
        const operation = (await findOperation(db, started.id)) ?? started
        if (!json && operation.position !== shown?.position) print(line, sub, operation)
        shown = operation
        if (operation.finished_at !== null) break
        await clock.sleep(EVERY_MS, line.stopping)
      }
      const last = (await findOperation(db, started.id)) ?? started
      const left = await findFailures(db, [last.id], MAX_SHOWN_FAILURES)
      const failures = left.map(({ object_id: id, error }) => ({ id, error }))
      if (json) line.print(JSON.stringify({ sub, ...toOperation(last, failures) }))
      else for (const { id, error } of failures) line.print(`${id}  ${error}`)
      if (last.finished_at === null) throw new CommandError(`Interrupted: the service goes on with ${last.id}`)
    } finally {
      await runner.close()
    }
  })
}

function print(line: CommandLine, sub: string, { id, state, position, total }: OperationRow): void {
  line.print([sub, state === 'done' ? 'erased' : 'being erased', `${position} of ${total}`, id].join('  '))
}
