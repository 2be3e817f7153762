import { recordAudit } from '../audit/record-audit.ts'
import { parseConfig } from '../config.ts'
import { systemClock, toRfc3339 } from '../core/clock.ts'
import { IdGenerator } from '../core/ids.ts'
import { systemRandom } from '../core/random.ts'
import type { Database } from '../db/database.ts'
import { exportUser, isKnownUser } from '../people/export-user.ts'
import { changeBlock } from '../users/change-block.ts'
import { readArguments } from './arguments.ts'
import { eraseUser } from './erase-user.ts'
import { CommandError, type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'
import { commandLineOrigin } from './startup/command-line-origin.ts'
import { openMigratedDatabase } from './startup/open-database.ts'

const OPTIONS = { json: { type: 'boolean' } } as const
const VERBS = { block, unblock, export: exportAll }
const NAMES = [...Object.keys(VERBS), 'erase']

interface Wanted {
  db: Database
  line: CommandLine
  sub: string
  json: boolean
}

/** Blocks and unblocks users, exports everything about one, and erases one. */
export async function users(line: CommandLine): Promise<ExitCode> {
  const { values, positionals } = readArguments(line.args, { options: OPTIONS, allowPositionals: true })
  const [verb = '', sub, ...more] = positionals
  if (!NAMES.includes(verb)) throw new UsageError(`users needs a subcommand: ${NAMES.join(', ')}`)
  if (!sub || more.length > 0) throw new UsageError(`users ${verb} needs one sub`)
  if (verb === 'erase') return eraseUser(line, { sub, json: values.json ?? false })
  const run = VERBS[verb as keyof typeof VERBS]
  const config = parseConfig(line.env, line.readFile)
  const opened = await openMigratedDatabase(config.database)
  try {
    await run({ db: opened.db, line, sub, json: values.json ?? false })
    return EXIT.ok
  } finally {
    await opened.close()
  }
}

const context = { ids: new IdGenerator(systemClock, systemRandom), clock: systemClock }

function block(wanted: Wanted): Promise<void> {
  return change(wanted, systemClock.now())
}

function unblock(wanted: Wanted): Promise<void> {
  return change(wanted, null)
}

async function change({ db, line, sub, json }: Wanted, blockedAtMs: number | null): Promise<void> {
  const wanted = { sub, blockedAtMs, by: commandLineOrigin() }
  const { blockedAtMs: nowMs } = await changeBlock(db, context, wanted)
  const blocked_at = nowMs === null ? null : toRfc3339(nowMs)
  if (json) line.print(JSON.stringify({ sub, blocked_at }))
  else line.print(blocked_at === null ? `${sub}  not blocked` : `${sub}  blocked since ${blocked_at}`)
}

/** The export is always JSON. */
async function exportAll({ db, line, sub }: Wanted): Promise<void> {
  if (!(await isKnownUser(db, sub))) throw new CommandError(`There is no user ${sub}`)
  const exported = { by: commandLineOrigin(), action: 'user.exported', object: { kind: 'user', id: sub } } as const
  await db.transaction((tx) => recordAudit(tx, context, exported))
  // Each piece ends between two JSON tokens, where a line break is allowed.
  const withoutRefresh = async () => false
  for await (const piece of exportUser(db, sub, withoutRefresh)) line.print(piece)
}
