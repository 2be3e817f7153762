import diagnostics from 'node:diagnostics_channel'
import type { AddressInfo } from 'node:net'
import { after, describe } from 'node:test'
import { buildApp } from '../../src/app.ts'
import type { CommandLineKey } from '../../src/auth/command-line-key.ts'
import { createDrain } from '../../src/cli/startup/drain.ts'
import { parseConfig, type Variant } from '../../src/config.ts'
import type { Env } from '../../src/config-reader.ts'
import { BoundedMap } from '../../src/core/bounded-map.ts'
import type { Clock } from '../../src/core/clock.ts'
import { type Log, silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import type { Tracer } from '../../src/core/tracing.ts'
import type { Database, Engine } from '../../src/db/database.ts'
import { NODE_FRESH_MS } from '../../src/db/nodes/node.ts'
import { sql } from '../../src/db/sql.ts'
import type { App } from '../../src/http/app-instance.ts'
import type { JobTypes } from '../../src/jobs/job-types.ts'
import type { ProjectNotifications } from '../../src/projects/project-notifications.ts'
import type { PushSender } from '../../src/push/push-provider.ts'
import { type IdentityProvider, startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import type { MintRequest } from '../../src/sandbox/identity-provider/token-mint.ts'
import { createServices, type Services } from '../../src/services.ts'
import { atEnd } from './at-end.ts'
import { databaseAt } from './clocked-database.ts'
import { type EngineUnderTest, forEachEngine, onSqlite } from './engines.ts'
import { HttpClient } from './http-client.ts'
import { ManualClock } from './manual-clock.ts'
import { PATIENCE_MS } from './patience.ts'
import { isDist } from './program-file.ts'
import { WatchedDatabase } from './watched-database.ts'

/** The tests of the build need one variant: both have run on the sources. */
export const VARIANTS: readonly Variant[] = isDist() ? ['A'] : ['A', 'B']

export interface TestServiceOptions {
  variant: Variant
  /** A migrated database. The test that opened it closes it. */
  db: Database
  /** Settings besides those of every test service. */
  env?: Env
  clock?: ManualClock
  /** The clock of the database. Default: the clock of the service. */
  databaseClock?: Pick<Clock, 'now'>
  idp?: IdentityProvider
  log?: Log
  tracer?: Tracer
  /** Default: the built-in job types. */
  jobTypes?: JobTypes
  projectNotifications?: ProjectNotifications
  commandLineKey?: CommandLineKey
  /** Default: none, so deliveries wait for credentials. */
  pushSender?: PushSender
  /** The certificate of a receiver of webhooks. */
  webhookCa?: string
  /** Called with the new Fastify app, before our hooks and routes are added: for stub routes and for observing. */
  extend?: (app: App) => void
}

/** So high that only the tests of the limits reach them. */
const NO_LIMITS = {
  RATE_LIMIT_UNAUTHENTICATED: '1000000',
  RATE_LIMIT_AUTHENTICATED: '1000000',
  RATE_LIMIT_SERVICE: '1000000',
}

/** The whole service on a free port of loopback, wired as in production; only time stands still until a test moves it. */
export async function startTestService(options: TestServiceOptions): Promise<TestService> {
  const { variant, db, clock = new ManualClock(), databaseClock = clock, log = silentLog } = options
  const { jobTypes, projectNotifications, commandLineKey, pushSender, webhookCa, tracer } = options
  const idp = options.idp ?? (await sharedIdentityProvider())
  const env = { NODE_ENV: 'test', ISSUER_URL: idp.issuer, API_VARIANT: variant, ...NO_LIMITS, ...options.env }
  const config = parseConfig(env, () => '')
  await forgetLaterNodes(db, databaseClock.now())
  const services = await createServices(config, {
    clock: withoutDoubt(clock),
    random: systemRandom,
    log,
    fetch,
    db: databaseAt(db, databaseClock),
    ...(tracer ? { tracer } : {}),
    ...(jobTypes ? { jobTypes } : {}),
    ...(projectNotifications ? { projectNotifications } : {}),
    ...(commandLineKey ? { commandLineKey } : {}),
    ...(pushSender ? { pushSenders: [pushSender] } : {}),
    ...(webhookCa ? { webhookCa } : {}),
  })
  try {
    const app = await buildExtended(services, options.extend)
    await app.listen({ host: '127.0.0.1', port: 0 })
    return new TestService({ app, services, idp, clock })
  } catch (error) {
    await services.close()
    throw error
  }
}

/** Removes nodes of an earlier test whose own clock is ahead: to this service they would prove that its clock was set back. */
async function forgetLaterNodes(db: Database, nowMs: number): Promise<void> {
  await db.query(sql`delete from nodes where expires_at > ${nowMs + 11_000}`)
  await db.query(sql`update service_clock set ran_until = 0 where ran_until > ${nowMs}`)
}

/** The same clock, by which a start does not wait for other nodes: no test moves the time meanwhile. */
function withoutDoubt(clock: ManualClock): Clock {
  return {
    now: () => clock.now(),
    calendar: () => clock.calendar(),
    elapsed: () => clock.elapsed(),
    sleep: (ms, signal) => (ms === NODE_FRESH_MS ? Promise.resolve() : clock.sleep(ms, signal)),
  }
}

export class TestService extends HttpClient {
  readonly app: App
  readonly services: Services
  readonly idp: IdentityProvider
  readonly clock: ManualClock
  readonly #tokens = new BoundedMap<string, string>(1000)
  readonly #drain: ReturnType<typeof createDrain>

  constructor(parts: { app: App; services: Services; idp: IdentityProvider; clock: ManualClock }) {
    const { port } = parts.app.server.address() as AddressInfo
    super(`http://127.0.0.1:${port}`)
    this.app = parts.app
    this.services = parts.services
    this.idp = parts.idp
    this.clock = parts.clock
    this.#drain = createDrain(parts.app.server)
  }

  get db(): Database {
    return this.services.db
  }

  get variant(): Variant {
    return this.services.config.variant
  }

  /**
   * A token of the provider, timed by this service's clock; the same token for the same request within ten minutes,
   * because signing takes time. Only a token with a lifetime of its own expires to the second.
   */
  tokenFor(request: MintRequest = {}): string {
    const now = Math.floor(this.clock.now() / 1000)
    const { expiresInSeconds } = request
    const iat = expiresInSeconds === undefined ? now - (now % 600) : now
    const exp = iat + (expiresInSeconds ?? 3600)
    const wish = { sub: 'a-user', ...request, claims: { iat, auth_time: iat, exp, ...request.claims } }
    const name = JSON.stringify([this.idp.kid, wish])
    const token = this.#tokens.get(name) ?? this.idp.mint(wish)
    this.#tokens.set(name, token)
    return token
  }

  /** As the program stops: without its drain, a connection on which no request came yet would hold it for a minute. */
  override async close(): Promise<void> {
    super.close()
    this.services.readiness.startDraining()
    await Promise.all([this.services.openStreams.close(), this.services.live.close()])
    await this.#drain({ listenMs: 0, answerMs: PATIENCE_MS })
    await this.app.close()
    await this.services.close()
  }
}

export interface ServiceUnderTest {
  variant: Variant
  engine: EngineUnderTest
  /** One service for all tests of the block; they keep to records of their own. */
  shared(): Promise<TestService>
  /** The database of the shared service. */
  watched(): Promise<WatchedDatabase>
  /** Another one, on a fresh database unless one is given. */
  start(options?: Partial<Omit<TestServiceOptions, 'variant'>>): Promise<TestService>
}

type Register = (service: ServiceUnderTest) => void

const VARIANT_ON: Record<Engine, Variant> = { sqlite: 'A', postgres: 'B' }

/**
 * Registers the same tests on both engines, as variant A on SQLite and as variant B on PostgreSQL, and stops their services
 * afterwards. The variants differ only in the error envelope, so each test runs once on each engine and as each variant.
 */
export function forEachService(register: Register): void {
  forEachEngine((engine) => registerVariants(engine, [VARIANT_ON[engine.name]], register))
}

/**
 * Once, as variant A on SQLite, for tests of code that neither runs SQL of its own nor renders errors. One renderer writes
 * the envelopes of all errors; test/http/errors.test.ts checks it in both variants.
 */
export function onOneService(register: Register): void {
  onSqlite((engine) => registerVariants(engine, ['A'], register))
}

/** Both variants on both engines, for the tests of the errors themselves. */
export function forEachServiceAndVariant(register: Register): void {
  forEachEngine((engine) => registerVariants(engine, VARIANTS, register))
}

/** Both variants on the embedded engine, for tests that do not depend on the database. */
export function forEachVariant(register: Register): void {
  onSqlite((engine) => registerVariants(engine, VARIANTS, register))
}

/** Variant B on the embedded engine, for tests in which neither the database nor the envelope of an error matters. */
export function onVariantB(register: Register): void {
  onSqlite((engine) => registerVariants(engine, ['B'], register))
}

function registerVariants(engine: EngineUnderTest, variants: readonly Variant[], register: Register): void {
  for (const variant of variants) describe(`as variant ${variant}`, () => register(serviceUnderTest(variant, engine)))
}

function serviceUnderTest(variant: Variant, engine: EngineUnderTest): ServiceUnderTest {
  const started: TestService[] = []
  after(async () => {
    for (const service of started.reverse()) await service.close()
  })
  const start: ServiceUnderTest['start'] = async (options = {}) => {
    const db = options.db ?? (await engine.openDatabase())
    const service = await startTestService({ ...options, variant, db })
    started.push(service)
    return service
  }
  const watched = once(async () => new WatchedDatabase(await engine.openDatabase()))
  const shared = once(async () => start({ db: (await watched()).db }))
  return { variant, engine, start, shared, watched }
}

/** One for all services of a test file: making its key takes longer than most tests. */
const sharedIdentityProvider = once(async () => {
  sharedProvider = await startIdentityProvider()
  return sharedProvider
})

let sharedProvider: IdentityProvider | undefined
atEnd(() => sharedProvider?.close())

function once<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined
  return () => {
    made ??= make()
    return made
  }
}

const FASTIFY_CREATED = 'fastify.initialization'

async function buildExtended(services: Services, extend: ((app: App) => void) | undefined): Promise<App> {
  if (!extend) return buildApp(services)
  const onCreated = (message: unknown) => extend((message as { fastify: App }).fastify)
  diagnostics.subscribe(FASTIFY_CREATED, onCreated)
  try {
    // The app is created before the first pause, so no other app is seen.
    const building = buildApp(services)
    diagnostics.unsubscribe(FASTIFY_CREATED, onCreated)
    return await building
  } finally {
    diagnostics.unsubscribe(FASTIFY_CREATED, onCreated)
  }
}
