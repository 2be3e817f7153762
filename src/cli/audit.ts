import { AUDIT_ACTIONS } from '../audit/audit-actions.ts'
import type { AuditEntry } from '../audit/audit-schema.ts'
import { readArguments, readLimit } from './arguments.ts'
import { findService, SERVICE_OPTIONS } from './client/find-service.ts'
import { printList } from './client/print-list.ts'
import { type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'

const OPTIONS = {
  ...SERVICE_OPTIONS,
  actor: { type: 'string' },
  action: { type: 'string' },
  object: { type: 'string' },
  limit: { type: 'string' },
} as const

/** Prints the newest entries of the audit trail. */
export async function audit(line: CommandLine): Promise<ExitCode> {
  const { values } = readArguments(line.args, { options: OPTIONS, allowPositionals: false })
  const { json = false, actor, action, object } = values
  if (action !== undefined && !Object.hasOwn(AUDIT_ACTIONS, action)) {
    throw new UsageError(`--action must be one of ${Object.keys(AUDIT_ACTIONS).join(', ')}`)
  }
  const limit = readLimit(values.limit)
  const service = await findService(line, values)
  const entries = service.list<AuditEntry>('/v1/audit', { actor, action, object, limit: `${limit}` })
  await printList(line, entries, { json, limit, show, none: 'No audit entries' })
  return EXIT.ok
}

function show({ at, actor, action, object }: AuditEntry): string {
  return [at, `${actor.kind} ${actor.id}`, action, `${object.kind} ${object.id}`].join('  ')
}
