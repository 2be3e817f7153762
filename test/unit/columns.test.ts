import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Columns, type ColumnTable, initialValues } from '../../src/db/columns.ts'
import { sql } from '../../src/db/sql.ts'

type Note = { id: string; body: string | null; author: string; views: number }

const TABLE = {
  id: { type: 'text', fixed: true },
  body: { type: 'text', large: true, initial: null },
  author: { type: 'text', fixed: true },
  views: { type: 'bigint', initial: 0 },
} as const satisfies ColumnTable<Note>

const NOTES = new Columns<Note>(TABLE)
const NOTE: Note = { id: 'n1', body: null, author: "o'hara", views: 3 }

test('an insert names every column once, and its values are bound in the same order', () => {
  const statement = sql`insert into notes (${NOTES.list}) values (${NOTES.values(NOTE)})`
  assert.equal(statement.text, 'insert into notes (id, body, author, views) values ($1, $2, $3, $4)')
  assert.deepEqual(statement.values, ['n1', null, "o'hara", 3])
})

test('an update writes every column that is not fixed, and carries the id to find its row', () => {
  assert.equal(NOTES.assignments.text, 'body = r.body, views = r.views')
  const changes = NOTES.changes('postgres', [NOTE])
  assert.match(
    changes.text,
    /\(select \$1::text\[\]\), \(select \$2::text\[\]\), \(select \$3::bigint\[\]\)\) as given\(id, body, views\)/,
  )
})

test('rows for an insert carry every column', () => {
  assert.deepEqual(NOTES.rows('sqlite', [NOTE]).values, [JSON.stringify([NOTE])])
})

test('a long text on SQLite is a bound value of its own, and the number of such values is a power of two', () => {
  const long = 'x'.repeat(70_000)
  const rows = [long, 'short', `${long}y`, `${long}z`].map((body, n) => ({ ...NOTE, id: `n${n}`, body }))
  const { text, values } = NOTES.changes('sqlite', rows)
  assert.deepEqual(values.slice(0, 4), [long, `${long}y`, `${long}z`, null])
  assert.deepEqual(JSON.parse(String(values[4])), [
    { id: 'n0', body_at: 0, views: 3 },
    { id: 'n1', body: 'short', views: 3 },
    { id: 'n2', body_at: 1, views: 3 },
    { id: 'n3', body_at: 2, views: 3 },
  ])
  assert.match(text, /when 3 then cast\(\$4 as text\) else/)
})

test('large columns and initial values come from the same table', () => {
  assert.deepEqual(
    NOTES.large.map(({ text }) => text),
    ['body'],
  )
  assert.deepEqual(initialValues(TABLE), { body: null, views: 0 })
})
