/**
 * Guarantees a like-for-like comparison of the PostgreSQL drivers: the same SQL, the same value parsers
 * and the same connection count, in one process and in interleaved rounds, reported as medians.
 *
 * Usage: node drivers.ts   (DATABASE_URL, ROUNDS, ROUND_MS, POOLS=10,4 and ONLY=<driver> change a run)
 */
import pg from 'pg'
import postgres from 'postgres'

const url = process.env.DATABASE_URL ?? 'postgres://postgres@127.0.0.1:55417/bench'
const rounds = Number(process.env.ROUNDS ?? 7)
const roundMs = Number(process.env.ROUND_MS ?? 600)
const poolSizes = (process.env.POOLS ?? '4,10').split(',').map(Number)
const projectCount = 10_000
const groupSize = 100

/** The operations that the benchmark runs on each driver. */
interface Driver {
  point(id: number): Promise<unknown>
  list(): Promise<unknown>
  insertOne(name: string, amount: number): Promise<unknown>
  insertGroup(names: readonly string[], amounts: readonly number[]): Promise<unknown>
  transact(id: number): Promise<unknown>
  end(): Promise<void>
}

const columns = 'id, name, owner, description, status, stars, created_at, updated_at'
const text = {
  point: `select ${columns} from projects where id = $1`,
  list: `select ${columns} from projects order by id desc limit 20`,
  one: 'insert into events (name, amount) values ($1, $2)',
  group: 'insert into events (name, amount) select * from unnest($1::text[], $2::bigint[])',
  lock: 'select stars from projects where id = $1 for update',
  update: 'update projects set stars = $2 where id = $1',
} as const

const named = (name: keyof typeof text, values: unknown[] = []): pg.QueryConfig => ({ name, text: text[name], values })

pg.types.setTypeParser(pg.types.builtins.INT8, Number)
pg.types.setTypeParser(pg.types.builtins.TIMESTAMPTZ, (value) => new Date(value))

function pgPool(size: number): Driver {
  const pool = new pg.Pool({ connectionString: url, max: size })
  return {
    point: (id) => pool.query(named('point', [id])),
    list: () => pool.query(named('list')),
    insertOne: (name, amount) => pool.query(named('one', [name, amount])),
    insertGroup: (names, amounts) => pool.query(named('group', [names, amounts])),
    async transact(id) {
      const client = await pool.connect()
      await client.query('begin')
      const { rows } = await client.query<{ stars: number }>(named('lock', [id]))
      await client.query(named('update', [id, (rows[0]?.stars ?? 0) + 1]))
      await client.query('commit')
      client.release()
    },
    end: () => pool.end(),
  }
}

/** `pipeline` does nothing through pool.query (one query per checkout), so single statements go round-robin over clients. */
async function pgPipeline(size: number): Promise<Driver> {
  const clients = Array.from({ length: size }, () => new pg.Client({ connectionString: url, pipeline: true }))
  await Promise.all(clients.map((client) => client.connect()))
  const pool = new pg.Pool({ connectionString: url, max: size, pipeline: true })
  let turn = 0
  const query = (config: pg.QueryConfig): Promise<unknown> => clients[turn++ % size]?.query(config)
  return {
    point: (id) => query(named('point', [id])),
    list: () => query(named('list')),
    insertOne: (name, amount) => query(named('one', [name, amount])),
    insertGroup: (names, amounts) => query(named('group', [names, amounts])),
    async transact(id) {
      const client = await pool.connect()
      const [, { rows }] = await Promise.all([
        client.query('begin'),
        client.query<{ stars: number }>(named('lock', [id])),
      ])
      await Promise.all([client.query(named('update', [id, (rows[0]?.stars ?? 0) + 1])), client.query('commit')])
      client.release()
    },
    async end() {
      await Promise.all([pool.end(), ...clients.map((client) => client.end())])
    },
  }
}

function postgresJs(size: number): Driver {
  const int8 = { to: 20, from: [20], serialize: String, parse: Number }
  const sql = postgres(url, { max: size, types: { int8 } })
  const run = (
    name: keyof typeof text,
    values: (string | number | readonly (string | number)[])[] = [],
  ): postgres.PendingQuery<postgres.Row[]> => sql.unsafe(text[name], values as never[], { prepare: true })
  return {
    point: (id) => run('point', [id]),
    list: () => run('list'),
    insertOne: (name, amount) => run('one', [name, amount]),
    insertGroup: (names, amounts) => run('group', [names, amounts]),
    transact: (id) =>
      sql.begin(async (tx) => {
        const [row] = await tx.unsafe<{ stars: number }[]>(text.lock, [id], { prepare: true })
        await tx.unsafe(text.update, [id, (row?.stars ?? 0) + 1], { prepare: true })
      }),
    end: () => sql.end(),
  }
}

interface Sample {
  readonly rate: number
  readonly p99: number
  readonly cpu: number
}

/** Keeps `concurrency` operations in flight for one round: operations/s, p99 in ms, client CPU in µs per operation. */
async function measure(operation: () => Promise<unknown>, concurrency: number, milliseconds: number): Promise<Sample> {
  const latencies: number[] = []
  const cpuBefore = process.cpuUsage()
  const start = performance.now()
  const loop = async (): Promise<void> => {
    for (let from = performance.now(); from < start + milliseconds; ) {
      await operation()
      const now = performance.now()
      latencies.push(now - from)
      from = now
    }
  }
  await Promise.all(Array.from({ length: concurrency }, loop))
  const seconds = (performance.now() - start) / 1000
  const { user, system } = process.cpuUsage(cpuBefore)
  latencies.sort((a, b) => a - b)
  return {
    rate: latencies.length / seconds,
    p99: latencies[Math.floor(latencies.length * 0.99)] ?? 0,
    cpu: (user + system) / latencies.length,
  }
}

const median = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN
const randomId = (): number => 1 + Math.floor(Math.random() * projectCount)
const names = Array.from({ length: groupSize }, (_, index) => `event "${index}", {group}`)
const amounts = Array.from({ length: groupSize }, (_, index) => index * 1_000_003)

const workloads: readonly {
  name: string
  concurrency: readonly number[]
  run: (driver: Driver) => Promise<unknown>
}[] = [
  { name: 'point read', concurrency: [64, 256], run: (driver) => driver.point(randomId()) },
  { name: 'list of 20', concurrency: [64, 256], run: (driver) => driver.list() },
  { name: 'insert 1', concurrency: [64], run: (driver) => driver.insertOne('event', 7) },
  { name: 'insert 100', concurrency: [8, 64], run: (driver) => driver.insertGroup(names, amounts) },
  { name: 'transaction', concurrency: [32], run: (driver) => driver.transact(randomId()) },
]

const admin = new pg.Client({ connectionString: url })
await admin.connect()
await admin.query(`
  drop table if exists projects, events;
  create table projects (id bigint primary key, name text not null, owner text not null, description text not null,
    status text not null, stars bigint not null, created_at timestamptz not null default now(), updated_at timestamptz not null default now());
  insert into projects select n, 'project ' || n, 'owner ' || n % 100, repeat('words ', 12), 'active', n from generate_series(1, ${projectCount}) n;
  create table events (id bigint generated always as identity primary key, name text not null, amount bigint not null)`)
await admin.query('vacuum analyze projects')

console.log(['workload', 'pool', 'conc', 'driver', 'op/s', 'ratio', 'p99 ms', 'cpu µs/op', 'min..max op/s'].join('\t'))
for (const size of poolSizes) {
  const all: [string, Driver][] = [
    ['pg', pgPool(size)],
    ['pg pipeline', await pgPipeline(size)],
    ['postgres', postgresJs(size)],
  ]
  const drivers = all.filter(([name]) => (process.env.ONLY ?? name) === name)
  for (const { name, concurrency, run } of workloads) {
    for (const inFlight of concurrency) {
      const samples = drivers.map((): Sample[] => [])
      for (let round = -1; round < rounds; round += 1) {
        for (const [index, [, driver]] of drivers.entries()) {
          await admin.query('truncate events')
          const sample = await measure(() => run(driver), inFlight, round < 0 ? roundMs / 3 : roundMs)
          if (round >= 0) samples[index]?.push(sample)
        }
      }
      const rates = samples.map((list) => median(list.map(({ rate }) => rate)))
      for (const [index, list] of samples.entries()) {
        const every = list.map(({ rate }) => Math.round(rate))
        console.log(
          [
            name,
            size,
            inFlight,
            drivers[index]?.[0],
            Math.round(rates[index] ?? 0),
            ((rates[index] ?? 0) / (rates[0] ?? 1)).toFixed(2),
            median(list.map(({ p99 }) => p99)).toFixed(1),
            median(list.map(({ cpu }) => cpu)).toFixed(0),
            `${Math.min(...every)}..${Math.max(...every)}`,
          ].join('\t'),
        )
      }
    }
  }
  await Promise.all(all.map(([, driver]) => driver.end()))
}
await admin.end()
globalThis.gc?.()
const { rss, heapUsed } = process.memoryUsage()
console.log(`after load: rss ${(rss / 2 ** 20).toFixed(0)} MiB, heap ${(heapUsed / 2 ** 20).toFixed(1)} MiB`)
