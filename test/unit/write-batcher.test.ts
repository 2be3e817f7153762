import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { UnavailableError } from '../../src/core/errors.ts'
import { LockTimeout } from '../../src/db/database.ts'
import { Locked, WriteBatcher, type WriteBatcherOptions } from '../../src/db/write-batcher.ts'

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

  test('of very many items that meet locks, a thousand are tried alone, and the others fail at once', async () => {
    const { group, commits } = poisonable({
      maxBatch: 1_100,
      maxBatchBytes: 20_000,
      maxWaiting: 2_000,
      maxWaitingBytes: 20_000,
    })
    const settled = await Promise.allSettled(Array.from({ length: 1_050 }, (_, n) => group.submit(`locked ${n}`)))
    for (const result of settled) assert.ok(result.status === 'rejected' && result.reason instanceof LockTimeout)
    assert.equal(commits.length, 1_001)
    assert.equal(await group.submit('good'), 'GOOD', 'and the next is tried again')
  })

  test('items that the commit leaves out are committed alone, and neither their batch nor a new one waits for them', async () => {
    const alone: { item: string; succeed: () => void }[] = []
    const { group } = store({
      commit: async (items, { waits }) => {
        if (!waits) return items.map((item) => (item.startsWith('locked') ? new Locked(item) : item.toUpperCase()))
        await new Promise<void>((resolve) => void alone.push({ item: items.join(), succeed: resolve }))
        return items.map((item) => item.toUpperCase())
      },
    })
    const locked = Array.from({ length: 6 }, (_, n) => group.submit(`locked ${n}`))
    assert.equal(await group.submit('free'), 'FREE')
    assert.equal(await group.submit('new'), 'NEW')
    assert.deepEqual(
      alone.map(({ item }) => item),
      ['locked 0', 'locked 1', 'locked 2'],
      'a few at the same time',
    )
    let drained = false
    const draining = group.drain().then(() => {
      drained = true
    })
    alone[2]?.succeed()
    assert.equal(await locked[2], 'LOCKED 2')
    assert.equal(drained, false)
    for (let n = 0; n < 6; n++) {
      while (alone.length <= n) await new Promise(setImmediate)
      alone[n]?.succeed()
    }
    assert.deepEqual((await Promise.all(locked)).length, 6)
    await draining
  })

  test('items that wait for the same lock wait together, so that those of another lock do not wait behind them', async () => {
    const waiting: { items: string[]; succeed: () => void }[] = []
    const { group } = store({
      maxBatch: 30,
      commit: async (items, { waits }) => {
        if (!waits) return items.map((item) => new Locked(item.slice(0, 3)))
        await new Promise<void>((resolve) => void waiting.push({ items, succeed: resolve }))
        return items.map((item) => item.toUpperCase())
      },
    })
    const first = group.submit('ada 0')
    while (waiting.length < 1) await new Promise(setImmediate)
    const many = Array.from({ length: 40 }, (_, n) => group.submit(`ada ${n + 1}`))
    const other = group.submit('bob 0')
    while (waiting.length < 2) await new Promise(setImmediate)
    assert.deepEqual(waiting[1]?.items, ['bob 0'])
    waiting[1]?.succeed()
    assert.equal(await other, 'BOB 0')
    assert.equal(waiting.length, 2, 'the second group of the same lock waits for the first')
    waiting[0]?.succeed()
    assert.equal(await first, 'ADA 0')
    while (waiting.length < 3) await new Promise(setImmediate)
    assert.equal(waiting[2]?.items.length, 30, 'no more than fit into one commit')
    waiting[2]?.succeed()
    while (waiting.length < 4) await new Promise(setImmediate)
    waiting[3]?.succeed()
    assert.equal((await Promise.all(many)).length, 40)
  })

  test('all items of one owner are committed after a commit that held a lock of this owner for a long time', async () => {
    const waiting: (() => void)[] = []
    let isHeld = true
    const { group } = store({
      commit: async (items, { waits }) => {
        if (!waits) return items.map((item) => (isHeld ? new Locked('ada') : item.toUpperCase()))
        if (isHeld) await new Promise<void>((resolve) => void waiting.push(resolve))
        return items.map((item) => item.toUpperCase())
      },
    })
    const many = Promise.allSettled(Array.from({ length: 1_000 }, (_, n) => group.submit(`${n}`)))
    while (group.waiting > 0) await new Promise(setImmediate)
    assert.equal(waiting.length, 1, 'one group waits for the lock, the others behind it')
    isHeld = false
    waiting[0]?.()
    assert.equal((await many).filter(({ status }) => status === 'rejected').length, 0)
  })

  test('of the items that wait for locks, most may wait for one, and others still find room', async () => {
    const released = Promise.withResolvers<void>()
    const { group } = store({
      maxWaiting: 5_000,
      commit: async (items, { waits }) => {
        if (!waits) return items.map((item) => new Locked(item.slice(0, 3)))
        await released.promise
        return items.map((item) => item.toUpperCase())
      },
      maxBatch: 1,
    })
    const submit = (owner: string, count: number) =>
      Array.from({ length: count }, () => group.submit(owner).then(Boolean, () => false))
    const ofAda = submit('ada', 2_100)
    while (group.waiting > 0) await new Promise(setImmediate)
    const ofBob = submit('bob', 100)
    while (group.waiting > 0) await new Promise(setImmediate)
    released.resolve()
    const committed = async (results: Promise<boolean>[]) => (await Promise.all(results)).filter(Boolean).length
    assert.deepEqual([await committed(ofAda), await committed(ofBob)], [2_001, 100])
  })

  test('a lock for which many items wait takes its turn behind the other locks', async () => {
    const committed: string[] = []
    const released = Promise.withResolvers<void>()
    const { group } = store({
      maxWaiting: 5_000,
      commit: async (items, { waits }) => {
        if (!waits) return items.map((item) => new Locked(item))
        await released.promise
        committed.push(items[0] ?? '')
        return items.map((item) => item.toUpperCase())
      },
      maxBatch: 1,
    })
    const owners = ['ada', 'bob', 'cyd', 'dan']
    const results = owners.flatMap((owner) => Array.from({ length: 6 }, () => group.submit(owner)))
    while (group.waiting > 0) await new Promise(setImmediate)
    released.resolve()
    await Promise.all(results)
    assert.ok(committed.indexOf('dan') < 8, committed.join(' '))
  })

  test('of items that waited together, only those whose rows stay locked fail', async () => {
    let attempts = 0
    const { group } = store({
      commit: async (items, { waits }) => {
        attempts += 1
        if (waits) throw new LockTimeout(undefined)
        // At first all items are locked, then only one.
        const isLocked = (item: string) => attempts === 1 || item === 'stuck'
        return items.map((item) => (isLocked(item) ? new Locked('ada') : item.toUpperCase()))
      },
    })
    const [stuck, free, last] = await Promise.allSettled(['stuck', 'free', 'last'].map((item) => group.submit(item)))
    assert.ok(stuck?.status === 'rejected' && stuck.reason instanceof LockTimeout)
    assert.equal(free?.status === 'fulfilled' && free.value, 'FREE')
    assert.equal(last?.status === 'fulfilled' && last.value, 'LAST')
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
