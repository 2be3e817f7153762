import { systemClock } from '../../core/clock.ts'
import type { BulkOperation, OperationFailure } from '../../operations/operation-schema.ts'
import { CommandError, type CommandLine } from '../io.ts'
import type { ServiceClient } from './service-client.ts'

const EVERY_MS = 500

interface OperationReads {
  /** Reads the operation again. */
  read: () => Promise<BulkOperation>
  /** Reads all items that failed: the operation itself shows the first ones. */
  readFailures: () => AsyncIterable<OperationFailure>
}

export interface FollowOptions extends OperationReads {
  /** Null: only the end is printed, as JSON with these fields. */
  show: ((operation: BulkOperation) => string) | null
  fields?: object
}

/** Reads an operation from a service. */
export function readsFrom(service: ServiceClient, id: string): OperationReads {
  const path = `/v1/operations/${id}`
  return { read: () => service.call(path), readFailures: () => service.list(`${path}/failures`, { limit: '100' }) }
}

/** Prints the progress of an operation until it finishes, then the items that failed. */
export async function followOperation(
  line: CommandLine,
  started: BulkOperation,
  { read, readFailures, show, fields }: FollowOptions,
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
  const { failed, failures: first } = operation
  const failures = failed > first.length ? await Array.fromAsync(readFailures()) : first
  if (show === null) line.print(JSON.stringify({ ...fields, ...operation, failures }))
  else for (const { id, error } of failures) line.print(`${id}  ${error}`)
}

function unlessStopping({ stopping }: CommandLine): (error: unknown) => null {
  return (error) => {
    if (stopping.aborted) return null
    throw error
  }
}
