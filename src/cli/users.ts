import type { BulkOperation } from '../operations/operation-schema.ts'
import { readArguments } from './arguments.ts'
import { findService, lookForService, SERVICE_OPTIONS } from './client/find-service.ts'
import { followOperation, readsFrom } from './client/follow-operation.ts'
import { ServiceClient } from './client/service-client.ts'
import { type CommandLine, EXIT, type ExitCode, UsageError } from './io.ts'

interface Wanted {
  line: CommandLine
  given: { url?: string; key?: string }
  sub: string
  json: boolean
}

const VERBS: Record<string, (wanted: Wanted) => Promise<void>> = {
  block: (wanted) => changeBlock(wanted, 'block'),
  unblock: (wanted) => changeBlock(wanted, 'unblock'),
  export: exportAll,
  erase,
}

/** Blocks and unblocks users, exports everything about one, and erases one. */
export async function users(line: CommandLine): Promise<ExitCode> {
  const { values, positionals } = readArguments(line.args, { options: SERVICE_OPTIONS, allowPositionals: true })
  const { json = false, ...given } = values
  const [verb = '', sub, ...more] = positionals
  const run = Object.hasOwn(VERBS, verb) ? VERBS[verb] : undefined
  if (!run) throw new UsageError(`users needs a subcommand: ${Object.keys(VERBS).join(', ')}`)
  if (!sub || more.length > 0) throw new UsageError(`users ${verb} needs one sub`)
  await run({ line, given, sub, json })
  return EXIT.ok
}

async function changeBlock({ line, given, sub, json }: Wanted, verb: 'block' | 'unblock'): Promise<void> {
  const service = await findService(line, given)
  const answer = await service.call<{ blocked_at: string | null }>(`${pathOf(sub)}/${verb}`, { method: 'POST' })
  const { blocked_at } = answer
  if (json) line.print(JSON.stringify({ sub, blocked_at }))
  else line.print(blocked_at === null ? `${sub}  not blocked` : `${sub}  blocked since ${blocked_at}`)
}

/** The export is always JSON. It is printed as it arrives, because it may be large. */
async function exportAll({ line, given, sub }: Wanted): Promise<void> {
  const service = await findService(line, given)
  for await (const piece of service.stream(`${pathOf(sub)}/export`)) line.write(piece)
  line.write('\n')
}

/** Waits until the erasure finishes. If the command is interrupted, the service continues the erasure. */
async function erase({ line, given, sub, json }: Wanted): Promise<void> {
  const show = ({ id, state, done, failed, total }: BulkOperation) =>
    [sub, state === 'done' ? 'erased' : 'being erased', `${done + failed} of ${total}`, id].join('  ')
  const follow = { show: json ? null : show, fields: { sub } }
  const service = await lookForService(line, given)
  if (!(service instanceof ServiceClient)) {
    // Loaded only here: it needs most of the service.
    const { eraseOnDatabase } = await import('./erase-user.ts')
    return eraseOnDatabase(line, sub, follow)
  }
  const started = await service.call<BulkOperation>(pathOf(sub), { method: 'DELETE' })
  await followOperation(line, started, { ...follow, ...readsFrom(service, started.id) })
}

function pathOf(sub: string): string {
  return `/v1/users/${encodeURIComponent(sub)}`
}
