import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import { LockTimeout } from '../../src/db/database.ts'
import { LOCKED, WriteBatcher, type WriteBatcherOptions } from '../../src/db/write-batcher.ts'

interface Batch {
  items: string[]
  succeed: () => void
  fail: (error: unknown) => void
}

/** A store whose commits a test ends one by one; each result is its item in upper case. */
function store(options: Partial<WriteBatcherOptions<string, string>> = {}) {
  const batches: Batch[] = []
  const group = new WriteBatcher<string, string>({
    commit: (items) =>
      new Promise((resolve, reject) => {
        batches.push({ items, succeed: () => resolve(items.map((item) => item.toUpperCase())), fail: reject })
      }),
    sizeOf: (item) => item.length,
    maxBatch: 100,
    maxBatchBytes: 1_000,
    maxWaiting: 1_000,
    maxWaitingBytes: 10_000,
    commitsAtOnce: 1,
    ...options,
  })
  const started = async (count: number) => {
    for (let turn = 0; batches.length < count && turn < 100; turn++) await new Promise(setImmediate)
    assert.equal(batches.length, count)
    return batches[count - 1] as Batch
  }
  return { group, batches, started }
}

/** Commits at once, but for items that say they are poison. */
function poisonable(options: Partial<WriteBatcherOptions<string, string>> = {}) {
  const commits: string[][] = []
  const group = new WriteBatcher<string, string>({
    commit: async (items) => {
      commits.push(items)
      if (items.some((item) => item.startsWith('down'))) throw new UnavailableError('The database is unavailable')
      if (items.some((item) => item.startsWith('locked'))) throw new LockTimeout(undefined)
      if (items.some((item) => item.startsWith('poison'))) throw new Error('poisoned')
      return items.map((item) => item.toUpperCase())
    },
    sizeOf: (item) => item.length,
    maxBatch: 100,
    maxBatchBytes: 1_000,
    maxWaiting: 1_000,
    maxWaitingBytes: 10_000,
    commitsAtOnce: 1,
    ...options,
  })
  return { group, commits }
}

describe('the write batcher', () => {
  test('items that arrive in one turn share the first commit', async () => {
    const { group, started } = store()
    const results = Promise.all(['a', 'b', 'c'].map((item) => group.submit(item)))
    const first = await started(1)
    assert.deepEqual(first.items, ['a', 'b', 'c'])
    first.succeed()
    assert.deepEqual(await results, ['A', 'B', 'C'])
  })

  test('items that arrive during a commit share the next one', async () => {
    const { group, batches, started } = store()
    const first = group.submit('a')
    await started(1)
    const rest = []
    for (const item of ['b', 'c', 'd']) {
      rest.push(group.submit(item))
      await new Promise(setImmediate)
    }
    assert.equal(group.waiting, 3)
    assert.equal(batches.length, 1, 'nothing overtakes the one under way')
    batches[0]?.succeed()
    assert.equal(await first, 'A')
    const second = await started(2)
    assert.deepEqual(second.items, ['b', 'c', 'd'])
    second.succeed()
    assert.deepEqual(await Promise.all(rest), ['B', 'C', 'D'])
    assert.equal(group.waiting, 0)
  })

  test('two commits may be under way at once, and no third', async () => {
    const { group, batches, started } = store({ commitsAtOnce: 2 })
    const results = [group.submit('a')]
    await started(1)
    results.push(group.submit('b'))
    await started(2)
    results.push(group.submit('c'))
    await new Promise(setImmediate)
    assert.equal(batches.length, 2)
    batches[1]?.succeed()
    assert.deepEqual((await started(3)).items, ['c'])
    batches[0]?.succeed()
    batches[2]?.succeed()
    assert.deepEqual(await Promise.all(results), ['A', 'B', 'C'])
  })

  test('one faulty item among many fails alone, at any position', async () => {
    for (const place of [0, 1, 31, 49, 50]) {
      const { group } = poisonable()
      const items = Array.from({ length: 51 }, (_, n) => (n === place ? 'poison' : `item ${n}`))
      const settled = await Promise.allSettled(items.map((item) => group.submit(item)))
      settled.forEach((result, n) => {
        if (n === place) assert.equal(result.status === 'rejected' && (result.reason as Error).message, 'poisoned')
        else assert.deepEqual(result, { status: 'fulfilled', value: `ITEM ${n}` })
      })
    }
  })

  test('several faulty items fail alone, each after few attempts', async () => {
    const { group, commits } = poisonable()
    const items = Array.from({ length: 64 }, (_, n) => (n % 20 === 0 ? `poison ${n}` : `item ${n}`))
    const settled = await Promise.allSettled(items.map((item) => group.submit(item)))
    assert.deepEqual(
      settled.map(({ status }) => status === 'rejected'),
      items.map((item) => item.startsWith('poison')),
    )
    assert.ok(commits.length <= 64, `${commits.length} commits`)
  })

  test('if all items are faulty, all fail, and later items are still committed', async () => {
    const { group } = poisonable()
    const settled = await Promise.allSettled(['poison 1', 'poison 2', 'poison 3'].map((item) => group.submit(item)))
    assert.ok(settled.every(({ status }) => status === 'rejected'))
    assert.equal(await group.submit('good'), 'GOOD')
  })

  test('items whose rows are locked fail alone, and every other item is committed', async () => {
    const { group, commits } = poisonable()
    const items = Array.from({ length: 51 }, (_, n) => (n % 25 === 0 ? `locked ${n}` : `item ${n}`))
    const settled = await Promise.allSettled(items.map((item) => group.submit(item)))
    settled.forEach((result, n) => {
      if (n % 25 === 0) assert.ok(result.status === 'rejected' && result.reason instanceof LockTimeout)
      else assert.deepEqual(result, { status: 'fulfilled', value: `ITEM ${n}` })
    })
    assert.equal(commits.length, 52, 'the batch, then each item once')
  })

  for (const [place, isLocked] of [
    ['spread', (n: number) => n % 5 === 0],
    ['in front', (n: number) => n < 11],
    ['at the end', (n: number) => n >= 40],
  ] as const) {
    test(`eleven items whose rows are locked, ${place}, fail alone`, async () => {
      const { group } = poisonable()
      const items = Array.from({ length: 51 }, (_, n) => (isLocked(n) ? `locked ${n}` : `item ${n}`))
      const settled = await Promise.allSettled(items.map((item) => group.submit(item)))
      settled.forEach((result, n) => {
        if (isLocked(n)) assert.ok(result.status === 'rejected' && result.reason instanceof LockTimeout)
        else assert.deepEqual(result, { status: 'fulfilled', value: `ITEM ${n}` })
      })
      await group.drain()
      assert.equal(group.waiting, 0)
    })
  }

  test('of many items whose rows stay locked, two hundred are tried alone, and the others fail at once', async () => {
    const { group, commits } = poisonable({ maxBatch: 300, maxBatchBytes: 10_000 })
    const settled = await Promise.allSettled(Array.from({ length: 250 }, (_, n) => group.submit(`locked ${n}`)))
    for (const result of settled) assert.ok(result.status === 'rejected' && result.reason instanceof LockTimeout)
    assert.equal(commits.length, 201)
    assert.equal(await group.submit('good'), 'GOOD', 'and the next is tried again')
  })

  test('items that the commit leaves out are committed alone, and neither their batch nor a new one waits for them', async () => {
    const alone: { item: string; succeed: () => void }[] = []
    const { group } = store({
      commit: async (items, { isAlone }) => {
        if (!isAlone) return items.map((item) => (item.startsWith('locked') ? LOCKED : item.toUpperCase()))
        await new Promise<void>((resolve) => void alone.push({ item: items.join(), succeed: resolve }))
        return items.map((item) => item.toUpperCase())
      },
    })
    const locked = Array.from({ length: 6 }, (_, n) => group.submit(`locked ${n}`))
    assert.equal(await group.submit('free'), 'FREE')
    assert.equal(await group.submit('new'), 'NEW')
    assert.deepEqual(
      alone.map(({ item }) => item),
      ['locked 0', 'locked 1', 'locked 2', 'locked 3'],
      'a few at the same time',
    )
    let drained = false
    const draining = group.drain().then(() => {
      drained = true
    })
    alone[3]?.succeed()
    assert.equal(await locked[3], 'LOCKED 3')
    assert.equal(drained, false)
    for (let n = 0; n < 6; n++) {
      while (alone.length <= n) await new Promise(setImmediate)
      alone[n]?.succeed()
    }
    assert.deepEqual((await Promise.all(locked)).length, 6)
    await draining
  })

  test('an unavailable store fails the whole batch at once, without smaller attempts', async () => {
    const { group, commits } = poisonable()
    const settled = await Promise.allSettled(['a', 'down', 'b'].map((item) => group.submit(item)))
    for (const result of settled) assert.ok(result.status === 'rejected' && result.reason instanceof UnavailableError)
    assert.equal(commits.length, 1)
    assert.equal(await group.submit('good'), 'GOOD', 'and the next is tried again')
  })

  test('a batch is bounded in number and in bytes, but takes one item of any size', async () => {
    const { group, started, batches } = store({ maxBatch: 3, maxBatchBytes: 10 })
    const items = ['a', 'b', 'c', 'd', 'x'.repeat(9), 'yy', 'z'.repeat(50), 'e']
    const results = Promise.all(items.map((item) => group.submit(item)))
    for (let n = 1; n <= 5; n++) (await started(n)).succeed()
    await results
    assert.deepEqual(
      batches.map(({ items }) => items.map((item) => item.length)),
      [[1, 1, 1], [1, 9], [2], [50], [1]],
    )
  })

  test('an item beyond the limit of waiting items is a 503, and each started batch makes room', async () => {
    const { group, started, batches } = store({ maxBatch: 2, maxWaiting: 2 })
    const first = group.submit('a')
    await started(1)
    const [second, third] = [group.submit('b'), group.submit('c')]
    await assert.rejects(group.submit('d'), (error: unknown) => {
      assert.ok(error instanceof UnavailableError)
      assert.equal(error.headers['retry-after'], '1')
      return true
    })
    batches[0]?.succeed()
    await first
    const next = await started(2)
    const fourth = group.submit('d')
    next.succeed()
    assert.deepEqual(await Promise.all([second, third]), ['B', 'C'])
    ;(await started(3)).succeed()
    assert.equal(await fourth, 'D')
  })

  test('more bytes than may wait are refused too', async () => {
    const { group, started } = store({ maxWaitingBytes: 10 })
    const first = group.submit('x'.repeat(10))
    await assert.rejects(group.submit('y'), UnavailableError)
    ;(await started(1)).succeed()
    await first
    const second = group.submit('y')
    ;(await started(2)).succeed()
    assert.equal(await second, 'Y')
  })

  test('drain waits for running and waiting items, and returns at once if there are none', async () => {
    const { group, started } = store()
    await group.drain()
    const results = [group.submit('a')]
    let drained = false
    const draining = group.drain().then(() => {
      drained = true
    })
    const first = await started(1)
    results.push(group.submit('b'))
    first.succeed()
    const second = await started(2)
    assert.equal(drained, false)
    second.succeed()
    await Promise.all([draining, ...results])
    await group.drain()
  })

  test('a commit that throws before it begins fails its own group and no other', async () => {
    let broken = true
    const { group } = store({
      commit: (items) => {
        if (broken) throw new Error('thrown')
        return Promise.resolve(items)
      },
    })
    await assert.rejects(group.submit('a'), /thrown/)
    broken = false
    assert.equal(await group.submit('a'), 'a')
  })
})
