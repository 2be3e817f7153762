import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EMPTY, join, sql } from '../../src/db/sql.ts'

test('a value is bound, never part of the text, whatever it says', () => {
  const hostile = "'; drop table projects; -- $1 ?"
  const statement = sql`select * from projects where name = ${hostile} and size > ${3}`
  assert.equal(statement.text, 'select * from projects where name = $1 and size > $2')
  assert.equal(statement.positionalText, 'select * from projects where name = ? and size > ?')
  assert.deepEqual(statement.values, [hostile, 3])
})

test('a statement without values is its text', () => {
  assert.equal(sql`select 1`.text, 'select 1')
  assert.deepEqual(sql`select 1`.values, [])
})

test('a nested fragment is spliced with its values in their place', () => {
  const inner = sql`b = ${'b'} or c = ${'c'}`
  const statement = sql`a = ${'a'} and (${inner}) and d = ${null}${EMPTY}`
  assert.equal(statement.text, 'a = $1 and (b = $2 or c = $3) and d = $4')
  assert.deepEqual(statement.values, ['a', 'b', 'c', null])
})

test('fragments nest in fragments, side by side and without values', () => {
  const inner = sql`${sql`x`}${sql`y = ${1}`}`
  const statement = sql`${inner} ${inner}${EMPTY} z = ${2}`
  assert.equal(statement.text, 'xy = $1 xy = $2 z = $3')
  assert.equal(statement.positionalText, 'xy = ? xy = ? z = ?')
  assert.deepEqual(statement.values, [1, 1, 2])
})

test('joined fragments keep the order of their values', () => {
  const joined = join([sql`a = ${1}`, sql`b is null`, sql`c in (${2}, ${3})`], ' and ')
  assert.equal(joined.text, 'a = $1 and b is null and c in ($2, $3)')
  assert.deepEqual(joined.values, [1, 2, 3])
  assert.equal(sql`where ${joined} limit ${4}`.text, 'where a = $1 and b is null and c in ($2, $3) limit $4')
})

test('an empty list of fragments joins to nothing', () => {
  assert.equal(join([], ', ').text, '')
  assert.deepEqual(join([], ', ').values, [])
})

test('the same statement has the same text each time, so that it is prepared once', () => {
  const find = (id: string) => sql`select * from projects where id = ${id}`
  assert.equal(find('a').text, find('b').text)
})
