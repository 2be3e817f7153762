import { systemClock } from '../../core/clock.ts'
import type { BulkOperation } from '../../operations/operation-schema.ts'
import { CommandError, type CommandLine } from '../io.ts'

const EVERY_MS = 500

interface FollowOptions {
  /** Reads the operation again. */
  read: () => Promise<BulkOperation>
  /** Null: only the end is printed, as JSON with these fields. */
  show: ((operation: BulkOperation) => string) | null
  fields?: object
}

/** Prints the progress of an operation until it finishes, then the items that failed. */
export async function followOperation(
  line: CommandLine,
  started: BulkOperation,
  { read, show, fields }: FollowOptions,
): Promise<void> {
  let operation = started
  for (let shown = ''; ; ) {
    const text = show?.(operation) ?? ''
    if (text !== shown) line.print(text)
    shown = text
    if (operation.finished_at !== null) break
    await systemClock.sleep(EVERY_MS, line.stopping)
    const again = line.stopping.aborted ? null : await read().catch(unlessStopping(line))
    if (again === null) throw new CommandError(`Interrupted: the service goes on with ${operation.id}`)
    operation = again
  }
  if (show === null) line.print(JSON.stringify({ ...fields, ...operation }))
  else for (const { id, error } of operation.failures) line.print(`${id}  ${error}`)
}

function unlessStopping({ stopping }: CommandLine): (error: unknown) => null {
  return (error) => {
    if (stopping.aborted) return null
    throw error
  }
}
