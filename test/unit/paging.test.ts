import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ApiError } from '../../src/core/errors.ts'
import { listById, listByTime, readPageRequest, toPage } from '../../src/http/paging.ts'

const projects = listById('projects')
const users = listByTime('users')

function pageOf(rows: string[], limit: number) {
  return toPage(projects, { rows, limit, toItem: (row) => ({ id: row }), positionOf: (row): [string] => [row] })
}

function encode(value: unknown): string {
  return Buffer.from(JSON.stringify(value)).toString('base64url')
}

test('the row beyond the limit only shows that there are more', () => {
  const page = pageOf(['c', 'b', 'a'], 2)
  assert.deepEqual(page.data, [{ id: 'c' }, { id: 'b' }])
  assert.equal(page.has_more, true)
  assert.deepEqual(readPageRequest(projects, { cursor: String(page.next_cursor) }), { limit: 20, after: ['b'] })
})

test('a last page, full or empty, has no cursor', () => {
  assert.deepEqual(pageOf(['b', 'a'], 2), { data: [{ id: 'b' }, { id: 'a' }], has_more: false, next_cursor: null })
  assert.deepEqual(pageOf([], 2), { data: [], has_more: false, next_cursor: null })
})

test('a list without a cursor begins at its beginning', () => {
  assert.deepEqual(readPageRequest(projects, {}), { limit: 20, after: null })
  assert.deepEqual(readPageRequest(users, { limit: 5 }), { limit: 5, after: null })
})

test('a position by time keeps its number and its name', () => {
  const cursor = encode(['users', 1_767_225_600_000, 'Åda 🧮'])
  assert.deepEqual(readPageRequest(users, { cursor }).after, [1_767_225_600_000, 'Åda 🧮'])
})

test('a cursor of another list, or one made up, is a 400 and never a wrong page', () => {
  const own = encode(['projects', 'prj_1'])
  const cases: [what: string, cursor: string][] = [
    ['another list', encode(['users', 'prj_1'])],
    ['another kind of position', encode(['projects', 1])],
    ['a position too long', encode(['projects', 'prj_1', 'prj_2'])],
    ['a position too short', encode(['projects'])],
    ['an object', encode({ 0: 'projects', 1: 'prj_1' })],
    ['null', encode(null)],
    ['a text no database holds', encode(['projects', '\u0000'])],
    ['half of a surrogate pair', encode(['projects', '\ud800'])],
    ['other white space', Buffer.from('["projects", "prj_1"]').toString('base64url')],
    ['padding', `${own}=`],
    ['plain base64', Buffer.from('["projects","prj_??>"]').toString('base64')],
    ['something after it', `${own}!`],
    ['nothing', ''],
    ['no base64', '%%%'],
    ['no JSON', Buffer.from('{').toString('base64url')],
  ]
  for (const [what, cursor] of cases) {
    assert.throws(
      () => readPageRequest(projects, { cursor }),
      (error) => error instanceof ApiError && error.code === 'invalid_request',
      what,
    )
  }
})

test('a time that is not an integer is not a position', () => {
  for (const time of [1.5, '1', null, 2 ** 53, true]) {
    assert.throws(() => readPageRequest(users, { cursor: encode(['users', time, 'a']) }), ApiError, String(time))
  }
})
