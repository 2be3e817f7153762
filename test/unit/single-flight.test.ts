import assert from 'node:assert/strict'
import { test } from 'node:test'
import { SingleFlight } from '../../src/core/async/single-flight.ts'

test('concurrent calls for one key share one execution and its result', async () => {
  const flights = new SingleFlight<string, number>()
  let runs = 0
  const work = async () => {
    runs += 1
    await new Promise(setImmediate)
    return runs
  }
  const results = await Promise.all([flights.run('a', work), flights.run('a', work), flights.run('a', work)])
  assert.deepEqual(results, [1, 1, 1])
})

test('calls for different keys run on their own', async () => {
  const flights = new SingleFlight<string, string>()
  const results = await Promise.all([flights.run('a', async () => 'A'), flights.run('b', async () => 'B')])
  assert.deepEqual(results, ['A', 'B'])
})

test('the next call after the end starts again, after a success or a failure', async () => {
  const flights = new SingleFlight<string, string>()
  assert.equal(await flights.run('a', async () => 'first'), 'first')
  assert.equal(await flights.run('a', async () => 'second'), 'second')
  await assert.rejects(
    flights.run('a', async () => Promise.reject(new Error('third'))),
    /third/,
  )
  assert.equal(await flights.run('a', async () => 'fourth'), 'fourth')
})

test('a failure reaches every caller who shared it', async () => {
  const flights = new SingleFlight<string, string>()
  const work = () => Promise.reject(new Error('trouble'))
  const outcomes = await Promise.allSettled([flights.run('a', work), flights.run('a', work)])
  assert.deepEqual(
    outcomes.map(({ status }) => status),
    ['rejected', 'rejected'],
  )
})

test('work that throws synchronously rejects, and does not block later calls', async () => {
  const flights = new SingleFlight<string, string>()
  const throwing = () => {
    throw new Error('at once')
  }
  await assert.rejects(flights.run('a', throwing), /at once/)
  assert.equal(await flights.run('a', async () => 'again'), 'again')
})
