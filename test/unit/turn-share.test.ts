import assert from 'node:assert/strict'
import { test } from 'node:test'
import { TurnShare } from '../../src/core/async/turn-share.ts'

test('equal questions of one turn get one answer, other questions their own', async () => {
  const share = new TurnShare<string, string>()
  let asked = 0
  const work = (answer: string) => async () => {
    asked += 1
    return answer
  }
  const answers = await Promise.all([
    share.ask('a', work('first')),
    share.ask('a', work('second')),
    share.ask('b', work('other')),
  ])
  assert.deepEqual(answers, ['first', 'first', 'other'])
  assert.equal(asked, 2)
})

test('nobody gets an answer older than its question: once the work has begun, it is begun anew', async () => {
  const share = new TurnShare<string, number>()
  const begun = Promise.withResolvers<void>()
  const answered = Promise.withResolvers<number>()
  const first = share.ask('a', () => {
    begun.resolve()
    return answered.promise
  })
  await begun.promise
  const second = share.ask('a', async () => 2)
  answered.resolve(1)
  assert.deepEqual(await Promise.all([first, second]), [1, 2])
})

test('a failure reaches everybody who shared it and nobody after', async () => {
  const share = new TurnShare<string, string>()
  const fail = (): Promise<string> => {
    throw new Error('trouble')
  }
  const outcomes = await Promise.allSettled([share.ask('a', fail), share.ask('a', async () => 'never')])
  assert.deepEqual(
    outcomes.map(({ status }) => status),
    ['rejected', 'rejected'],
  )
  assert.equal(await share.ask('a', async () => 'fine'), 'fine')
})
