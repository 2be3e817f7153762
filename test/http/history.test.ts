import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import type { Callback } from '../../src/jobs/callbacks/callback-schema.ts'
import { assertError } from '../support/assert-error.ts'
import { addDevice, readJobRows } from '../support/job-rows.ts'
import { type JobWorld, RUN_MS, startJobWorld } from '../support/job-world.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { forEachService } from '../support/service.ts'

const DAY_MS = 86_400_000
const HOUSEKEEPING_MS = 600_000

const callbacksOf = async (world: JobWorld, id: string): Promise<Callback[]> => {
  const path = `/v1/callbacks?job_id=${id}`
  return (await world.service.request<{ data: Callback[] }>('GET', path, { token: world.admin })).body.data
}

const timelineOf = async (world: JobWorld, id: string): Promise<TimelineEntry[]> =>
  (await world.request<{ data: TimelineEntry[] }>('GET', `/jobs/${id}/timeline`, 'ada')).body.data

/** A job of Ada's that ended by its callback, and whose push was sent. */
async function ended(world: JobWorld): Promise<string> {
  await addDevice(world.db, 'ada')
  const { id } = await world.start('report')
  await world.sweepUntil(async () => (await world.stored(id)).status === 'completed', RUN_MS)
  await world.sweepUntil(async () => (await readJobRows(world.db, id)).deliveries[0]?.state === 'sent')
  assert.equal((await callbacksOf(world, id)).length, 1)
  return id
}

describe('history', () => {
  forEachService((under) => {
    test('the history of ended jobs is deleted after the retention; the job, its usage and unfinished jobs stay', async () => {
      const env = { HISTORY_RETENTION_DAYS: '2' }
      const world = await startJobWorld(under, { env, pushSender: new ScriptedSender() })
      const id = await ended(world)
      const paused = await world.start('pausing')
      await world.sweepUntil(async () => (await world.stored(paused.id)).status === 'awaiting_input', RUN_MS)
      await world.sweepUntil(async () => (await readJobRows(world.db, paused.id)).deliveries[0]?.state === 'sent')
      const before = await readJobRows(world.db, id)
      const [callback] = await callbacksOf(world, id)
      const pausedBefore = await timelineOf(world, paused.id)

      await world.leap(DAY_MS)
      await world.leap(HOUSEKEEPING_MS)
      assert.equal((await callbacksOf(world, id)).length, 1, 'it is not time yet')
      await world.leap(DAY_MS)
      await world.leapUntil(async () => (await readJobRows(world.db, id)).deliveries.length === 0, HOUSEKEEPING_MS)

      assert.deepEqual(await callbacksOf(world, id), [])
      assert.deepEqual(await timelineOf(world, id), [])
      const { job, runs, usage, counters, notifications } = await readJobRows(world.db, id)
      assert.deepEqual({ job, runs, usage, counters }, pick(before))
      assert.deepEqual(notifications, [])
      const pausedAfter = await timelineOf(world, paused.id)
      // Its question was asked about meanwhile.
      assert.deepEqual(pausedAfter.slice(0, pausedBefore.length), pausedBefore)
      assert.equal((await callbacksOf(world, paused.id)).length, 1)
      const { token, service } = { token: world.admin, service: world.service }
      const replay = await service.request('POST', `/v1/callbacks/${callback?.id}/replay`, { token })
      assertError(service, replay, { status: 404, code: 'not_found', message: 'No such callback' })
      const shown = await service.request('GET', `/v1/notifications/${before.notifications[0]?.id}`, { token })
      assertError(service, shown, { status: 404, code: 'not_found', message: 'No such notification' })
    })

    test('a late callback after the history was deleted changes no job, sends no push and is not counted again', async () => {
      const env = { HISTORY_RETENTION_DAYS: '1' }
      const world = await startJobWorld(under, { env, pushSender: new ScriptedSender() })
      const id = await ended(world)
      const { thread_id, run_id } = await world.stored(id)
      await world.leap(DAY_MS)
      await world.leapUntil(async () => (await readJobRows(world.db, id)).deliveries.length === 0, HOUSEKEEPING_MS)
      const before = await readJobRows(world.db, id)
      const late = { thread_id, run_id, status: 'success', values: { report: { n: 43 } } }
      const again = await world.callback('report', late)
      assert.deepEqual(again.body, { received: true, outcome: 'duplicate', job_id: id })
      const other = await world.callback('report', { ...late, status: 'error', error: 'kaboom' })
      assert.deepEqual(other.body, { received: true, outcome: 'stale', job_id: id })
      await world.quiet()
      assert.deepEqual(await readJobRows(world.db, id), before)
      assert.deepEqual(
        (await callbacksOf(world, id)).map(({ outcome }) => outcome),
        ['stale', 'duplicate'],
        'what came late is kept as long as anything else',
      )
    })

    test('the history of a job is kept for ever by default', async () => {
      const world = await startJobWorld(under, { pushSender: new ScriptedSender() })
      const id = await ended(world)
      const timeline = await timelineOf(world, id)
      await world.leap(4_000 * DAY_MS)
      await world.leap(HOUSEKEEPING_MS)
      assert.equal((await callbacksOf(world, id)).length, 1)
      assert.deepEqual(await timelineOf(world, id), timeline)
      assert.equal((await readJobRows(world.db, id)).deliveries.length, 1)
    })
  })
})

function pick({ job, runs, usage, counters }: Awaited<ReturnType<typeof readJobRows>>) {
  return { job, runs, usage, counters }
}
