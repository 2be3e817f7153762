import assert from 'node:assert/strict'
import { test } from 'node:test'
import { firstIdAt, IdGenerator, timeOfId } from '../../src/core/ids.ts'
import { type Random, systemRandom, uuidFrom } from '../../src/core/random.ts'

const fixed = (byte: number): Random => ({ bytes: (count) => new Uint8Array(count).fill(byte), fraction: () => 0 })

function generatorAt(time: { ms: number }, random: Random = systemRandom): IdGenerator {
  return new IdGenerator({ now: () => time.ms }, random)
}

test('an id is its prefix and 26 characters of an alphabet without look-alikes', () => {
  const id = generatorAt({ ms: Date.UTC(2026, 0, 1) }).next('prj')
  assert.match(id, /^prj_[0-9a-hjkmnp-tv-z]{26}$/)
})

test('ids of later milliseconds sort later, up to the end of time', () => {
  const time = { ms: 0 }
  const ids = generatorAt(time)
  const made = [0, 1, 31, 32, 1023, 1024, Date.UTC(2026, 0, 1), 2 ** 48 - 1].map((ms) => {
    time.ms = ms
    return ids.next('prj')
  })
  assert.deepEqual(made.toSorted(), made)
})

test('ids of one millisecond sort in the order they were made', () => {
  const ids = generatorAt({ ms: 1_000 })
  const made = Array.from({ length: 10_000 }, () => ids.next('prj'))
  assert.deepEqual(made.toSorted(), made)
  assert.equal(new Set(made).size, made.length)
})

test('ids go on rising when the clock steps back', () => {
  const time = { ms: 50_000 }
  const ids = generatorAt(time)
  const made = [50_000, 49_999, 0, 50_000, 50_001].map((ms) => {
    time.ms = ms
    return ids.next('prj')
  })
  assert.deepEqual(made.toSorted(), made)
})

test('ids go on rising when the random part runs over', () => {
  const ids = generatorAt({ ms: 7 }, fixed(255))
  const made = Array.from({ length: 3 }, () => ids.next('prj'))
  assert.deepEqual(
    made,
    ['0000000007zzzzzzzzzzzzzzzz', '00000000080000000000000000', '00000000080000000000000001'].map((id) => `prj_${id}`),
  )
})

test('two generators with the same clock do not meet', () => {
  const made = Array.from({ length: 1_000 }, () => generatorAt({ ms: 7 }).next('prj'))
  assert.equal(new Set(made).size, made.length)
})

test('a UUID is of version 4', () => {
  assert.equal(uuidFrom(fixed(255)), 'ffffffff-ffff-4fff-bfff-ffffffffffff')
  assert.equal(uuidFrom(fixed(0)), '00000000-0000-4000-8000-000000000000')
})

test('random bytes come in the number asked for, and are not handed out twice', () => {
  for (const count of [0, 1, 16, 4_096, 4_097, 100_000]) assert.equal(systemRandom.bytes(count).length, count)
  const drawn = Array.from({ length: 2_000 }, () => Buffer.from(systemRandom.bytes(16)).toString('hex'))
  assert.equal(new Set(drawn).size, drawn.length)
})

test('the first id of a time lies between what was made before it and what is made from then on', () => {
  const time = { ms: 0 }
  const ids = generatorAt(time)
  for (const ms of [1, 32, 1024, Date.UTC(2026, 0, 1), 2 ** 48 - 1]) {
    time.ms = ms - 1
    const earlier = ids.next('cbk')
    time.ms = ms
    const first = firstIdAt('cbk', ms)
    assert.ok(earlier < first && first < ids.next('cbk'), first)
  }
  assert.equal(firstIdAt('cbk', -1), firstIdAt('cbk', 0))
})

test('the time of an id is the time of its creation', () => {
  for (const ms of [0, 1, Date.UTC(2026, 0, 1), 2 ** 48 - 1])
    assert.equal(timeOfId(generatorAt({ ms }).next('cbk')), ms)
})
