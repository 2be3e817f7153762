import { flushCompileCache } from 'node:module'
import type { AddressInfo } from 'node:net'
import { hostname } from 'node:os'
import { pino } from 'pino'
import { buildApp } from '../../app.ts'
import { CommandLineKey } from '../../auth/command-line-key.ts'
import { isCognitoIssuer } from '../../auth/issuer/cognito.ts'
import type { Config } from '../../config.ts'
import { ConfigError } from '../../config-reader.ts'
import { systemClock } from '../../core/clock.ts'
import { reasonOf } from '../../core/errors.ts'
import type { Log } from '../../core/log.ts'
import { systemRandom, uuidFrom } from '../../core/random.ts'
import { traceFields } from '../../core/tracing.ts'
import { LISTEN_BACKLOG } from '../../http/server/server-limits.ts'
import { LogBuffer } from '../../ops/log-buffer.ts'
import { createLogger, type FlushableLog } from '../../ops/logger.ts'
import { ReadableLog } from '../../ops/readable-log.ts'
import { createServices, type Dependencies, type Services } from '../../services.ts'
import type { OpenTracer } from '../../tracing/open-tracing.ts'
import { VERSION } from '../../version.ts'
import { CommandError, EXIT } from '../io.ts'
import { userName } from './command-line-origin.ts'
import { createDrain, within } from './drain.ts'
import { publishLocalService } from './local-service.ts'
import { buildIndexes, type OpenedDatabase } from './open-database.ts'
import { reloadSecrets } from './reload-secrets.ts'

interface RunningService {
  url: string
  /** Uses the secrets of the new settings. Settings with a fault change nothing. Never rejects. */
  reload(readConfig: () => Config): Promise<void>
  /** Finishes the requests in progress, then stops. Never takes longer than the configured timeout. */
  stop(options: { lameDuck: boolean }): Promise<void>
}

/** Shares of the shutdown timeout. The rest is for closing the services and the database. */
const SHARE = { lameDuck: 0.25, answers: 0.55 }
/** Lines are written in the background. If the reader stalls and the buffer is full, lines are dropped. */
const LOG_BUFFER = { sync: false, maxLength: 16 * 1024 * 1024 }
const LAST_LINES_MS = 500
const LAST_SPANS_MS = 1_000
const WARM_UP_AFTER_MS = 100
const RETRY_INDEXES_MS = 60_000

/** Starts the service on a migrated database. The database is closed with the service, or if the start fails. */
export async function runService(
  config: Config,
  database: OpenedDatabase,
  {
    readableLog = false,
    ...extras
  }: Pick<Dependencies, 'jobTypes' | 'projectNotifications' | 'pushCa' | 'loopbackOnly' | 'consoleDev'> & {
    /** Lines for people instead of JSON. */
    readableLog?: boolean
  },
): Promise<RunningService> {
  const { db } = database
  const nodeId = uuidFrom(systemRandom)
  const { log, tracer } = await openLog(config, { readable: readableLog, nodeId })
  endWithLogLine(log)
  const own = { clock: systemClock, random: systemRandom, nodeId, log, fetch, db }
  const local = localAccess(config.database)
  const given = { ...own, ...(tracer && { tracer }), ...(local && { commandLineKey: local.key }), ...extras }
  const services = await createServices(config, given)
  const close = async () => {
    await services.close()
    if (tracer) await within(LAST_SPANS_MS, tracer.close())
    await database.close()
  }
  try {
    const app = await buildApp(services)
    const drain = createDrain(app.server)
    const { host, port } = config
    await app.listen({ host, port, backlog: LISTEN_BACKLOG }).catch(explainListening)
    const listening = app.server.address() as AddressInfo
    const url = urlOf(config.host, listening)
    const withdraw = local ? publishLocalService(local, { listening, log }) : () => {}
    void services.outbox.start().catch(() => {})
    log.info({ url, variant: config.variant, engine: db.engine }, 'service.started')
    if (config.webhookSecrets.length === 0) log.warn({}, 'callbacks.not_authenticated')
    if (config.tokenAudience === null && !isCognitoIssuer(config.issuerUrl)) log.warn({}, 'tokens.audience_not_checked')
    log.flush(() => {})
    void warmUp(services)
    const stopping = new AbortController()
    void buildIndexesMeanwhile(config.database, log, stopping.signal)

    const stop = async (lameDuck: boolean) => {
      stopping.abort()
      withdraw()
      services.readiness.startDraining()
      services.outbox.stopLeasing()
      services.webhooks.stopLeasing()
      log.info({}, 'service.draining')
      await services.openStreams.close()
      // The last questions of live output to the runtime may take seconds: `app.close` waits for them, after the drain.
      void services.live.close()
      const timeoutMs = config.shutdownTimeoutMs
      await drain({ listenMs: lameDuck ? timeoutMs * SHARE.lameDuck : 0, answerMs: timeoutMs * SHARE.answers })
      await app.close()
      await close()
    }
    return {
      url,
      reload: async (readConfig) => {
        try {
          log.info({ ...(await reloadSecrets(services, readConfig())) }, 'secrets.reloaded')
        } catch (error) {
          const faults = error instanceof ConfigError ? error.faults : [reasonOf(error)]
          log.warn({ faults }, 'secrets.not_reloaded')
        }
      },
      stop: async ({ lameDuck }) => {
        const stopped = await within(config.shutdownTimeoutMs, stop(lameDuck))
        if (stopped) log.info({}, 'service.stopped')
        else log.warn({ afterMs: config.shutdownTimeoutMs }, 'service.stop_cut_short')
        await flush(log)
      },
    }
  } catch (error) {
    await close()
    throw error
  }
}

/**
 * With tracing, a log line that belongs to a trace contains its id. Lines and traces name their process with the same
 * attributes; lines for people have only one process.
 */
async function openLog(
  { logLevel, tracesEndpoint: endpoint }: Config,
  { readable, nodeId }: { readable: boolean; nodeId: string },
): Promise<{ log: FlushableLog; tracer: OpenTracer | null }> {
  const output = pino.destination({ dest: 1, ...LOG_BUFFER })
  const destination = new LogBuffer(readable ? new ReadableLog(output) : output)
  const node = { 'service.instance.id': nodeId, 'host.name': hostname() }
  const options = { level: logLevel, destination, base: readable ? null : node }
  if (endpoint === null) return { log: createLogger(options), tracer: null }
  // Loaded only here: without an endpoint, nothing is traced.
  const { openTracing } = await import('../../tracing/open-tracing.ts')
  const log = createLogger({ ...options, mixin: () => traceFields(tracer.current) })
  const tracer = openTracing({ endpoint, version: VERSION, node, log })
  return { log, tracer }
}

/** An error that no code handles, such as a disk that cannot be synced, ends the process with one line in the log. */
function endWithLogLine(log: FlushableLog): void {
  process.once('uncaughtException', (error) => {
    process.on('uncaughtException', () => {})
    log.error({ err: error }, 'service.crashed')
    void flush(log).then(() => process.exit(EXIT.failed))
  })
}

/** Slow work that must not delay the first health probe. A request that needs a key earlier fetches it itself. */
async function warmUp({ keySet }: Services): Promise<void> {
  await systemClock.sleep(WARM_UP_AFTER_MS)
  await keySet.warmUp()
  // Node writes the cache only on a clean exit. Without this, a process that is killed would start slowly again.
  flushCompileCache()
}

/**
 * Lists also work without their indexes, only slower. A stop does not wait for a build: the next start builds the index
 * again.
 */
async function buildIndexesMeanwhile(database: Config['database'], log: Log, signal: AbortSignal): Promise<void> {
  const onBuilt = (index: string) => log.info({ index }, 'index.built')
  while (!signal.aborted) {
    try {
      return await buildIndexes(database, { onBuilt, signal })
    } catch (error) {
      log.warn({ err: error }, 'index.not_built')
      await systemClock.sleep(RETRY_INDEXES_MS, signal)
    }
  }
}

/** The key for commands beside an embedded node. For PostgreSQL, commands are given an address and a key. */
function localAccess(database: Config['database']): { dataDir: string; key: CommandLineKey } | null {
  if (database.engine !== 'sqlite') return null
  return { dataDir: database.dataDir, key: new CommandLineKey({ random: systemRandom, user: userName() }) }
}

function explainListening(error: unknown): never {
  throw new CommandError(`Cannot listen on HOST and PORT: ${reasonOf(error)}`, EXIT.config, { cause: error })
}

function urlOf(host: string, { port }: AddressInfo): string {
  return `http://${host.includes(':') ? `[${host}]` : host}:${port}`
}

/** The process ends right after this: lines that are still buffered would be lost. */
async function flush(log: FlushableLog): Promise<void> {
  await within(LAST_LINES_MS, new Promise((resolve) => log.flush(() => resolve())))
}
