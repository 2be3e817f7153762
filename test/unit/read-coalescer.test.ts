import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ReadCoalescer } from '../../src/core/async/read-coalescer.ts'

test('equal reads of one turn share one result, and other reads have their own', async () => {
  const reads = new ReadCoalescer<string, string>()
  let asked = 0
  const work = (answer: string) => async () => {
    asked += 1
    return answer
  }
  const answers = await Promise.all([
    reads.read('a', work('first')),
    reads.read('a', work('second')),
    reads.read('b', work('other')),
  ])
  assert.deepEqual(answers, ['first', 'first', 'other'])
  assert.equal(asked, 2)
})

test('no read gets a result older than its request: after the work has begun, the next read starts it again', async () => {
  const reads = new ReadCoalescer<string, number>()
  const begun = Promise.withResolvers<void>()
  const answered = Promise.withResolvers<number>()
  const first = reads.read('a', () => {
    begun.resolve()
    return answered.promise
  })
  await begun.promise
  const second = reads.read('a', async () => 2)
  answered.resolve(1)
  assert.deepEqual(await Promise.all([first, second]), [1, 2])
})

test('a failure reaches every read that shared it and no later one', async () => {
  const reads = new ReadCoalescer<string, string>()
  const fail = (): Promise<string> => {
    throw new Error('trouble')
  }
  const outcomes = await Promise.allSettled([reads.read('a', fail), reads.read('a', async () => 'never')])
  assert.deepEqual(
    outcomes.map(({ status }) => status),
    ['rejected', 'rejected'],
  )
  assert.equal(await reads.read('a', async () => 'fine'), 'fine')
})
