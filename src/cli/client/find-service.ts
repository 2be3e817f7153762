import { ConfigReader } from '../../config-reader.ts'
import { DataFolderInUse } from '../../db/sqlite/data-folder.ts'
import { SETTINGS } from '../../settings.ts'
import { CommandError, type CommandLine, EXIT, UsageError } from '../io.ts'
import { localServiceFile, readLocalService } from '../startup/local-service.ts'
import { ServiceClient } from './service-client.ts'

/** The options of every command that works on a service. */
export const SERVICE_OPTIONS = {
  url: { type: 'string' },
  key: { type: 'string' },
  json: { type: 'boolean' },
} as const

type Given = { url?: string; key?: string }

/** The service that a command works on. A command that needs one fails without it. */
export async function findService(line: CommandLine, given: Given): Promise<ServiceClient> {
  const found = await lookForService(line, given)
  if (found instanceof ServiceClient) return found
  throw new CommandError(`${found.absent}. Start it, or name a service with --url and --key`, EXIT.unavailable)
}

/**
 * The service that the options or the environment name, else the embedded node of the data folder; or why there is none. A
 * file that a crashed node left is no service, even if another program listens at its address now.
 */
export async function lookForService(line: CommandLine, given: Given): Promise<ServiceClient | { absent: string }> {
  const url = given.url ?? line.env.PROJECT_API_URL?.trim()
  if (url) return namedService(line, { ...given, url })
  if (given.key !== undefined) throw new UsageError('--key needs --url')
  const read = new ConfigReader(line.env, line.readFile)
  const hasServer = read.read(SETTINGS.database.url.name, SETTINGS.database.url.secret) !== null
  const dataDir = read.text(SETTINGS.database.dataDir.name) ?? SETTINGS.database.dataDir.default
  read.throwFaults()
  if (hasServer) return { absent: 'On PostgreSQL a command does not know where the service runs' }
  const local = readLocalService(dataDir)
  if (!local) return { absent: `No service with an address on loopback runs on the data folder ${dataDir}` }
  const client = new ServiceClient(local, line)
  if (await client.accepts()) return client
  const file = localServiceFile(dataDir)
  return { absent: `No service runs on the data folder ${dataDir}: the one that left ${file} has ended` }
}

/** A service at an address. The key may come from the environment, where other users of the machine cannot read it. */
export function namedService(line: CommandLine, { url, key = line.env.PROJECT_API_KEY?.trim() }: Given): ServiceClient {
  if (!key) throw new UsageError('--url needs a service key: --key KEY, or PROJECT_API_KEY in the environment')
  if (!/^[\x21-\x7e]+$/.test(key)) throw new UsageError('the key must be one word of ASCII characters')
  if (!url || !/^https?:\/\//.test(url) || !URL.canParse(url)) {
    throw new UsageError('--url must start with http:// or https://')
  }
  return new ServiceClient({ url, key }, line)
}

/** A node that starts or stops, or that does not listen on loopback, uses the folder without being found there. */
export function explainInUse(error: unknown): never {
  if (!(error instanceof CommandError && error.cause instanceof DataFolderInUse)) throw error
  const advice = 'If it is a service, name it with --url and --key'
  throw new CommandError(`${error.message}. ${advice}`, error.exitCode, { cause: error })
}
