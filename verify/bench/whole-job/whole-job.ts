import { type ChildProcess, fork } from 'node:child_process'
import { Agent, request } from 'node:http'
import { fileURLToPath } from 'node:url'
import { buildNextIndex } from '../../../src/db/build-indexes.ts'
import { migrate } from '../../../src/db/migrate.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { startIdentityProvider } from '../../../src/sandbox/identity-provider/identity-provider.ts'
import { startPostgres } from '../../../test/support/postgres.ts'
import { startRedis } from '../../../test/support/redis.ts'
import { answerOf } from '../child-answers.ts'
import { median } from '../comparison.ts'
import { installPackages } from '../packages.ts'
import { type Server, serviceSpec, startServer } from '../server.ts'
import { openViewer, type Viewer } from '../streams/viewers.ts'
import type { CallbackTimes, RuntimeAddress } from './runtime-process.ts'

const WAYS = ['ours', 'bullmq', 'pg-boss'] as const
export type Way = (typeof WAYS)[number]

/** The medians of the rounds. */
export interface WholeJobFigures {
  jobsPerSecond: number
  /** Of the server's process, for one job. Redis and PostgreSQL are not in it. */
  cpuMicroseconds: number
  /** From the sending of the callback to the event at the client, at full load. */
  p50Ms: number
  p99Ms: number
}

/** As many as jobs in flight: with few users, the jobs of a user would wait for its row of usage. */
const USERS = 100
const IN_FLIGHT = 100
/** One round is too short for V8: see `warmUp` in `comparison.ts`. */
const WARM_UP_ROUNDS = 3
const RUN_MS = 20
const SECRET = 'bench'
const UNREACHABLE = '1000000000'
const GIVE_UP_MS = 60_000

/**
 * Whole jobs: posted by a client, run for 20 ms by the runtime, ended by its callback, with the event at the client. The
 * service, Express with BullMQ and Express with pg-boss take turns on one PostgreSQL, and a client has 100 jobs in flight.
 */
export async function compareWholeJobs({ rounds, jobs }: { rounds: number; jobs: number }): Promise<{
  figures: ReadonlyMap<Way, WholeJobFigures>
  ratios: ReadonlyMap<Exclude<Way, 'ours'>, number>
}> {
  installPackages('queues')
  const postgres = await startPostgres()
  const redis = await startRedis()
  const issuer = await startIdentityProvider()
  const runtime = fork(fileURLToPath(new URL('./runtime-process.ts', import.meta.url)), {
    env: { PATH: process.env.PATH, NODE_ENV: 'production', RUN_MS: String(RUN_MS) },
  })
  const clients: Client[] = []
  const servers: Server[] = []
  try {
    const { url: RUNTIME_URL } = await answerOf<RuntimeAddress>(runtime)
    const shared = { ISSUER_URL: issuer.issuer, RUNTIME_URL, WEBHOOK_SECRET: SECRET }
    const queueEnv = { ...shared, NODE_ENV: 'production', RATE_LIMIT: UNREACHABLE, REDIS_URL: redis.url }
    const tokens = Array.from({ length: USERS }, (_, n) => issuer.mint({ sub: `user-${n}` }))
    const start = async (way: Way): Promise<Server> => {
      const DATABASE_URL = await postgres.createDatabase()
      if (way !== 'ours') return startServer({ script: `./queues/${way}.js`, env: { ...queueEnv, DATABASE_URL } })
      await prepare(DATABASE_URL)
      const env = { ...shared, NODE_ENV: 'development', RATE_LIMIT_AUTHENTICATED: UNREACHABLE, DATABASE_URL }
      return startServer(serviceSpec((port) => ({ ...env, PUBLIC_URL: `http://127.0.0.1:${port}` })))
    }
    const played = new Map<Way, WholeJobFigures[]>(WAYS.map((way) => [way, []]))
    for (const way of WAYS) {
      const server = await start(way)
      servers.push(server)
      clients.push(await Client.open(server, tokens))
    }
    for (let round = -WARM_UP_ROUNDS; round < rounds; round++) {
      for (const [n, way] of WAYS.entries()) {
        const figures = await play(servers[n] as Server, clients[n] as Client, { runtime, jobs })
        if (round >= 0) played.get(way)?.push(figures)
      }
    }
    const rates = (way: Way) => (played.get(way) ?? []).map(({ jobsPerSecond }) => jobsPerSecond)
    const ratioTo = (way: Way) => median(rates('ours').map((rate, n) => rate / (rates(way)[n] ?? Number.NaN)))
    return {
      figures: new Map(WAYS.map((way) => [way, middle(played.get(way) ?? [])])),
      ratios: new Map([
        ['bullmq', ratioTo('bullmq')],
        ['pg-boss', ratioTo('pg-boss')],
      ]),
    }
  } finally {
    for (const client of clients) client.close()
    for (const server of servers) await server.stop()
    runtime.kill('SIGKILL')
    await issuer.close()
    await redis.stop()
    await postgres.stop()
  }
}

async function play(
  server: Server,
  client: Client,
  { runtime, jobs }: { runtime: ChildProcess; jobs: number },
): Promise<WholeJobFigures> {
  const cpuMs = server.cpuMs() ?? Number.NaN
  const startedMs = performance.now()
  const arrivedAtMs = await client.runJobs(jobs)
  const seconds = (performance.now() - startedMs) / 1_000
  runtime.send('times')
  const sentAtMs = await answerOf<CallbackTimes>(runtime)
  const delaysMs = [...arrivedAtMs].map(([id, atMs]) => atMs - (sentAtMs[id] ?? Number.NaN)).sort((a, b) => a - b)
  if (delaysMs.some(Number.isNaN)) throw new Error('A job ended without its callback')
  const at = (share: number) => delaysMs[Math.floor(share * (delaysMs.length - 1))] ?? Number.NaN
  return {
    jobsPerSecond: jobs / seconds,
    cpuMicroseconds: (1_000 * ((server.cpuMs() ?? Number.NaN) - cpuMs)) / jobs,
    p50Ms: at(0.5),
    p99Ms: at(0.99),
  }
}

/** The users of one server. Each has a stream of events open. */
class Client {
  readonly #port: number
  readonly #tokens: readonly string[]
  readonly #agent = new Agent({ keepAlive: true, maxSockets: IN_FLIGHT })
  readonly #viewers: Viewer[] = []
  /** When the end of each job arrived, in milliseconds of the system's clock. */
  #arrivedAtMs = new Map<string, number>()
  #onArrival: (id: string) => void = () => undefined

  static async open(server: Server, tokens: readonly string[]): Promise<Client> {
    const client = new Client(server.port, tokens)
    for (const token of tokens) {
      client.#viewers.push(await openViewer({ port: server.port, token }, (data) => client.#onEvent(data)))
    }
    return client
  }

  constructor(port: number, tokens: readonly string[]) {
    this.#port = port
    this.#tokens = tokens
  }

  close(): void {
    for (const viewer of this.#viewers) viewer.close()
    this.#agent.destroy()
  }

  #onEvent(data: string): void {
    const [, id] = /"job_id":"([^"]+)"/.exec(data) ?? []
    if (id === undefined || !data.includes('"status":"completed"')) return
    if (this.#arrivedAtMs.has(id)) throw new Error(`The end of ${id} arrived twice`)
    this.#arrivedAtMs.set(id, performance.timeOrigin + performance.now())
    this.#onArrival(id)
  }

  /** Runs so many jobs, each to its end. Returns when each end arrived. */
  async runJobs(jobs: number): Promise<ReadonlyMap<string, number>> {
    this.#arrivedAtMs = new Map()
    const waiting = new Map<string, () => void>()
    this.#onArrival = (id) => waiting.get(id)?.()
    let begun = 0
    const runInTurn = async () => {
      for (let n = begun++; n < jobs; n = begun++) {
        const id = await this.#post(this.#tokens[n % this.#tokens.length] as string, n)
        if (!this.#arrivedAtMs.has(id)) await new Promise<void>((resolve) => waiting.set(id, resolve))
      }
    }
    const late = AbortSignal.timeout(GIVE_UP_MS)
    await Promise.race([
      Promise.all(Array.from({ length: IN_FLIGHT }, runInTurn)),
      new Promise((_, reject) => late.addEventListener('abort', () => reject(late.reason))),
    ])
    return this.#arrivedAtMs
  }

  #post(token: string, n: number): Promise<string> {
    const body = JSON.stringify({ type: 'report', input: { title: 'Sales', n } })
    const headers = {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      'content-length': Buffer.byteLength(body),
    }
    return new Promise((resolve, reject) => {
      const port = this.#port
      const options = { host: '127.0.0.1', port, path: '/jobs', method: 'POST', agent: this.#agent, headers }
      const sending = request(options, (response) => {
        let text = ''
        response.setEncoding('utf8')
        response.on('data', (chunk: string) => {
          text += chunk
        })
        response.on('error', reject)
        response.on('end', () => {
          if (response.statusCode === 202) resolve((JSON.parse(text) as { id: string }).id)
          else reject(new Error(`A job was answered with ${response.statusCode}: ${text.slice(0, 500)}`))
        })
      })
      sending.on('error', reject)
      sending.end(body)
    })
  }
}

async function prepare(url: string): Promise<void> {
  const db = await openPostgres({ url })
  try {
    await migrate(db)
    while ((await buildNextIndex(db)) !== 'done');
  } finally {
    await db.close()
  }
}

function middle(rounds: readonly WholeJobFigures[]): WholeJobFigures {
  const of = (pick: (round: WholeJobFigures) => number) => median(rounds.map(pick))
  return {
    jobsPerSecond: of((round) => round.jobsPerSecond),
    cpuMicroseconds: of((round) => round.cpuMicroseconds),
    p50Ms: of((round) => round.p50Ms),
    p99Ms: of((round) => round.p99Ms),
  }
}
