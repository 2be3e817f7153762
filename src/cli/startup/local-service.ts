import { readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { isJsonObject } from '../../core/json.ts'
import type { Log } from '../../core/log.ts'
import { isLoopbackAddress } from '../../core/loopback.ts'
import { CommandError, EXIT } from '../io.ts'

/** The embedded node of a data folder, as commands on its machine reach it. */
interface LocalService {
  url: string
  /** The key of the node's start. */
  key: string
}

/** The loopback address of a port that listens on every interface. */
const LOOPBACK_OF: Readonly<Record<string, string>> = { '0.0.0.0': '127.0.0.1', '::': '::1' }

/**
 * Writes the address and the key of this start into the data folder, for its owner only, and returns the function that
 * removes the file. A node that does not listen on loopback writes none: its key would be refused. The service runs on if
 * the disk refuses the file.
 */
export function publishLocalService(
  { dataDir, key }: { dataDir: string; key: { text: string } },
  { listening, log }: { listening: AddressInfo; log: Log },
): () => void {
  const file = localServiceFile(dataDir)
  const attempt = (change: () => void) => {
    try {
      change()
    } catch (error) {
      log.warn({ err: error, file }, 'command_line.file_not_changed')
    }
  }
  const remove = () => attempt(() => rmSync(file, { force: true }))
  const url = loopbackUrlOf(listening)
  if (url === null) remove()
  else attempt(() => replaceFile(file, `${JSON.stringify({ url, key: key.text } satisfies LocalService)}\n`))
  return remove
}

/** Always creates a new file with mode 0600, even if a crashed node left one. No command reads half a file. */
function replaceFile(file: string, text: string): void {
  const made = `${file}.new`
  rmSync(made, { force: true })
  writeFileSync(made, text, { mode: 0o600, flag: 'wx' })
  renameSync(made, file)
}

function loopbackUrlOf({ address: listening, port }: AddressInfo): string | null {
  const address = LOOPBACK_OF[listening] ?? listening
  if (!isLoopbackAddress(address)) return null
  return `http://${address.includes(':') ? `[${address}]` : address}:${port}`
}

/** What the file in the data folder says. Its node may have crashed since. Null: there is no such file. */
export function readLocalService(dataDir: string): LocalService | null {
  try {
    const read: unknown = JSON.parse(readFileSync(localServiceFile(dataDir), 'utf8'))
    const isWhole = isJsonObject(read) && typeof read.url === 'string' && typeof read.key === 'string'
    return isWhole ? (read as unknown as LocalService) : null
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    if (error instanceof SyntaxError || code === 'ENOENT' || code === 'ENOTDIR') return null
    const advice = 'run the command as the user of the service, or name the service with --url and --key'
    throw new CommandError(`${localServiceFile(dataDir)} cannot be read (${code}): ${advice}`, EXIT.config, {
      cause: error,
    })
  }
}

export function localServiceFile(dataDir: string): string {
  return join(dataDir, 'command-line.json')
}
