import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { readTables } from '../../src/db/copy/catalog.ts'
import { CopyError, copyDatabase } from '../../src/db/copy/copy-database.ts'
import type { Database, Row } from '../../src/db/database.ts'
import { rowsOf } from '../../src/db/rows.ts'
import { Sql, sql } from '../../src/db/sql.ts'
import { appendEvents, findHead, findTrimmed, skipPositions, trimEvents } from '../../src/events/event-store.ts'
import { onBothEngines } from '../support/engines.ts'

const NEVER = new AbortController().signal

const OTHER = { sqlite: 'postgres', postgres: 'sqlite' } as const
const HOSTILE = ['', ' ', '007', '1e5', 'null', '{"a":1}', 'ä😀\u2028', "'; drop table jobs; --", '\\', '"', '\u0001']

/** Rows in every table, by its columns alone; with `large` more in some, beyond the size of a batch in rows and in bytes. */
async function fill(db: Database, { large = false } = {}): Promise<void> {
  for (const { name, columns } of await readTables(db)) {
    const seeded = await db.query(new Sql([`select 1 as found from ${name}`], []))
    if (seeded.length > 0 || name === 'events') continue
    const count = name === 'callbacks' ? 5 : large && (name === 'projects' || name === 'job_checks') ? 1_500 : 12
    const rows = Array.from({ length: count }, (_, at) =>
      Object.fromEntries(
        Object.entries(columns).map(([column, type]) => [column, cellOf({ name, column, type, at, large })]),
      ),
    )
    const list = Object.keys(columns).join(', ')
    const insert = new Sql(
      [
        `insert into ${name} (${list}) ${db.engine === 'postgres' ? 'overriding system value' : ''} select ${list} from`,
      ],
      [],
    )
    await db.query(sql`${insert} ${rowsOf(db.engine, rows, columns)} as r where true`)
  }
  for (let at = 0; at < 12; at++) await addEvent(db, `cause-${at}`)
}

async function addEvent(db: Database, cause: string): Promise<void> {
  const event = { subject: null, job_id: null, type: 'project.created', data: '{}', created_at: 5 } as const
  await db.transaction((tx) => appendEvents(tx, [{ ...event, cause }]))
}

function cellOf({
  name,
  column,
  type,
  at,
  large,
}: {
  name: string
  column: string
  type: string
  at: number
  large: boolean
}): string | number {
  if (type === 'bigint') return column.endsWith('_at') ? 2 ** 53 - 1 - at : at + 1
  if (name === 'jobs' && column === 'status') return at % 2 === 0 ? 'completed' : 'failed'
  if (large && name === 'callbacks' && column === 'body') return `"${'é'.repeat(1024 * 1024)}"`
  if (name === 'jobs' && column === 'output') return HOSTILE[at] ?? 'x'
  return `${String(at).padStart(5, '0')}`
}

async function contentOf(db: Database): Promise<Record<string, string[]>> {
  const content: Record<string, string[]> = {}
  for (const { name, columns } of await readTables(db)) {
    const rows = await db.query<Row>(new Sql([`select ${Object.keys(columns).join(', ')} from ${name}`], []))
    content[name] = rows.map((row) => JSON.stringify(row)).sort()
  }
  return content
}

const SEEDED = ['event_log', 'stats_cursors', 'user_state_version', 'service_clock', 'webhook_cursor']

async function isEmpty(db: Database): Promise<boolean> {
  const content = await contentOf(db)
  return Object.entries(content).every(([name, rows]) => rows.length === 0 || SEEDED.includes(name))
}

describe('a copy', () => {
  onBothEngines((engines) => {
    const open = (engine: 'sqlite' | 'postgres') => engines[engine].openDatabase()
    for (const engine of ['sqlite', 'postgres'] as const) {
      test(`a copy from ${engine} has every row of every table, and continues the event numbers of the source`, async () => {
        const source = await open(engine)
        const target = await open(OTHER[engine])
        await fill(source, { large: true })
        const copied: string[] = []
        await copyDatabase(source, target, { onCopied: ({ name }) => copied.push(name), signal: NEVER })
        const content = await contentOf(source)
        assert.deepEqual(copied.sort(), Object.keys(content).sort())
        assert.ok(Object.values(content).every((rows) => rows.length > 0))
        assert.deepEqual(await contentOf(target), content)
        assert.deepEqual(await findHead(target), await findHead(source))
      })

      test(`a copy from ${engine} uses no event number a second time, although the last events were deleted`, async () => {
        const source = await open(engine)
        const target = await open(OTHER[engine])
        await fill(source)
        const { seq } = await findHead(source)
        await trimEvents(source, { beforeMs: Number.MAX_SAFE_INTEGER, limit: 1_000 })
        await copyDatabase(source, target, { onCopied: () => {}, signal: NEVER })
        assert.equal((await findHead(target)).seq, seq)
        await addEvent(target, 'next')
        assert.equal((await findHead(target)).seq, seq + 1)
      })

      test(`a copy from ${engine} that is stopped leaves the target empty`, async () => {
        const source = await open(engine)
        const target = await open(OTHER[engine])
        await fill(source)
        const stopping = new AbortController()
        const onCopied = () => stopping.abort(new Error('stopped'))
        await assert.rejects(copyDatabase(source, target, { onCopied, signal: stopping.signal }), /stopped/)
        assert.ok(await isEmpty(target))
      })

      test(`a copy from ${engine} into a target with a row is refused, and changes nothing`, async () => {
        const source = await open(engine)
        const target = await open(OTHER[engine])
        await fill(source)
        await fill(target)
        await target.query(sql`delete from projects`)
        const before = await contentOf(target)
        await assert.rejects(copyDatabase(source, target, { onCopied: () => {}, signal: NEVER }), CopyError)
        assert.deepEqual(await contentOf(target), before)
      })

      test(`a copy from ${engine} is refused while a node runs on the source`, async () => {
        const source = await open(engine)
        const target = await open(OTHER[engine])
        await source.query(sql`insert into nodes (id, started_at, expires_at) values ('n', 1, ${2 ** 50})`)
        const refused = copyDatabase(source, target, { onCopied: () => {}, signal: NEVER })
        await assert.rejects(refused, /1 nodes run on the source/)
      })
    }

    test('a copy from postgres is refused if a node starts on the source meanwhile, and leaves the target empty', async () => {
      const source = await open('postgres')
      const target = await open('sqlite')
      await fill(source)
      await source.query(sql`delete from nodes`)
      let isStarted = false
      const onCopied = async () => {
        if (isStarted) return
        isStarted = true
        await source.query(sql`insert into nodes (id, started_at, expires_at) values ('n', 1, ${2 ** 50})`)
      }
      await assert.rejects(copyDatabase(source, target, { onCopied, signal: NEVER }), /1 nodes run on the source/)
      assert.ok(await isEmpty(target))
    })

    for (const engine of ['sqlite', 'postgres'] as const) {
      test(`a restore on ${engine} uses no event number a second time, and every older cursor counts as trimmed`, async () => {
        const db = await open(engine)
        for (const cause of ['one', 'two', 'three']) await addEvent(db, cause)
        await db.transaction(skipPositions)
        const { seq } = await findHead(db)
        assert.equal(seq, 1_000_000_003)
        assert.equal(await findTrimmed(db), seq)
        await addEvent(db, 'next')
        assert.equal((await findHead(db)).seq, seq + 1)
      })
    }

    test('a logical replication on postgres, which copies no sequence, uses no event number a second time', async () => {
      const db = await open('postgres')
      await db.transaction(skipPositions)
      await addEvent(db, 'one')
      const lastUsed = (await findHead(db)).seq
      await db.query(sql`select setval('events_seq_seq', 1, false) as seq`)
      await db.transaction(skipPositions)
      await addEvent(db, 'next')
      assert.equal((await findHead(db)).seq, lastUsed + 1_000_000_001)
    })
  })
})
