import { AUDIT_ACTIONS, type AuditAction } from '../audit/audit-actions.ts'
import { toAuditEntry } from '../audit/audit-routes.ts'
import { findAuditPage } from '../audit/audit-store.ts'
import { parseConfig } from '../config.ts'
import { readArguments, readLimit } from './arguments.ts'
import { type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { openToRead } from './startup/open-database.ts'

const OPTIONS = {
  json: { type: 'boolean' },
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
  const filter = {
    ...(actor !== undefined && { actor }),
    ...(action !== undefined && { action: action as AuditAction }),
    ...(object !== undefined && { object }),
  }
  const config = parseConfig(line.env, line.readFile)
  const opened = await openToRead(config.database)
  try {
    const { rows } = await findAuditPage(opened.db, filter, { limit, after: null })
    for (const entry of rows.map(toAuditEntry)) {
      const { at, actor: by, action: what, object: of } = entry
      line.print(json ? JSON.stringify(entry) : [at, `${by.kind} ${by.id}`, what, `${of.kind} ${of.id}`].join('  '))
    }
    return EXIT.ok
  } finally {
    await opened.close()
  }
}
