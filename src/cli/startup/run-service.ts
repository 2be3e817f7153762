import { flushCompileCache } from 'node:module'
import type { AddressInfo } from 'node:net'
import { pino } from 'pino'
import { buildApp } from '../../app.ts'
import type { Config } from '../../config.ts'
import { systemClock } from '../../core/clock.ts'
import { reasonOf } from '../../core/errors.ts'
import type { Log } from '../../core/log.ts'
import { systemRandom } from '../../core/random.ts'
import { LISTEN_BACKLOG } from '../../http/server/server-limits.ts'
import { LogBuffer } from '../../ops/log-buffer.ts'
import { createLogger, type FlushableLog } from '../../ops/logger.ts'
import { createServices, type Dependencies, type Services } from '../../services.ts'
import { CommandError, EXIT } from '../io.ts'
import { createDrain, within } from './drain.ts'
import { buildIndexes, type OpenedDatabase } from './open-database.ts'

export interface RunningService {
  url: string
  /** Finishes the requests in progress, then stops. Never takes longer than the configured timeout. */
  stop(options: { lameDuck: boolean }): Promise<void>
}

/** Shares of the shutdown timeout. The rest is for closing the services and the database. */
const SHARE = { lameDuck: 0.25, answers: 0.55 }
/** Lines are written in the background. If the reader stalls and the buffer is full, lines are dropped. */
const LOG_BUFFER = { sync: false, maxLength: 16 * 1024 * 1024 }
const LAST_LINES_MS = 500
const WARM_UP_AFTER_MS = 100
const RETRY_INDEXES_MS = 60_000

/** Starts the service on a migrated database. The database is closed with the service, or if the start fails. */
export async function runService(
  config: Config,
  database: OpenedDatabase,
  extras: Pick<Dependencies, 'jobTypes' | 'projectNotifications' | 'pushCa' | 'loopbackOnly'>,
): Promise<RunningService> {
  const { db } = database
  const log = createLogger(config.logLevel, new LogBuffer(pino.destination({ dest: 1, ...LOG_BUFFER })))
  const services = await createServices(config, { clock: systemClock, random: systemRandom, log, fetch, db, ...extras })
  const close = async () => {
    await services.close()
    await database.close()
  }
  try {
    const app = await buildApp(services)
    const drain = createDrain(app.server)
    const { host, port } = config
    await app.listen({ host, port, backlog: LISTEN_BACKLOG }).catch(explainListening)
    const url = urlOf(config.host, app.server.address() as AddressInfo)
    void services.outbox.start().catch(() => {})
    log.info({ url, variant: config.variant, engine: db.engine }, 'service.started')
    if (config.webhookSecrets.length === 0) log.warn({}, 'callbacks.not_authenticated')
    log.flush(() => {})
    void warmUp(services)
    const stopping = new AbortController()
    void buildIndexesMeanwhile(config.database, log, stopping.signal)

    const stop = async (lameDuck: boolean) => {
      stopping.abort()
      services.readiness.startDraining()
      services.outbox.stopLeasing()
      log.info({}, 'service.draining')
      await services.streams.close()
      const timeoutMs = config.shutdownTimeoutMs
      await drain({ listenMs: lameDuck ? timeoutMs * SHARE.lameDuck : 0, answerMs: timeoutMs * SHARE.answers })
      await app.close()
      await close()
    }
    return {
      url,
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

/** Slow work that the first probe must not wait for. A request that needs a key earlier fetches it itself. */
async function warmUp({ keySet }: Services): Promise<void> {
  await systemClock.sleep(WARM_UP_AFTER_MS)
  await keySet.warmUp()
  // Node writes the cache only on a clean exit. Without this, a process that is killed would start slowly again.
  flushCompileCache()
}

/** Lists answer without their indexes too, only slower. A stop does not wait: the next start builds the index again. */
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
