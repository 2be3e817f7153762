import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Redis } from 'ioredis'
import { systemClock } from '../../src/core/clock.ts'
import type { Log } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import { connectWakeUps } from '../../src/events/wake-ups.ts'
import { startRedis } from '../support/redis.ts'
import { needsRedis } from '../support/services.ts'
import { until } from '../support/until.ts'

test(
  'a node that Redis does not allow to subscribe reports it, and subscribes as soon as it is allowed',
  needsRedis(),
  async (t) => {
    const server = await startRedis()
    const admin = new Redis(server.url)
    t.after(async () => {
      admin.disconnect()
      await server.stop()
    })
    await admin.call('ACL', 'SETUSER', 'node', 'on', '>pass', '+@all', 'resetchannels')
    const warned: string[] = []
    const record = (_fields: object, event: string) => void warned.push(event)
    const log: Log = { debug: record, info: record, warn: record, error: record }
    const heard: string[] = []
    const url = server.url.replace('redis://', 'redis://node:pass@')
    const options = { url, clock: systemClock, random: systemRandom, log }
    const wakeUps = connectWakeUps({ ...options, onSignal: (topic) => void heard.push(topic) })
    t.after(() => wakeUps.close())
    await until(() => warned.length > 0)
    assert.deepEqual([warned, wakeUps.state()], [['wake_ups.not_subscribed'], { connected: false }])
    await admin.call('ACL', 'SETUSER', 'node', 'allchannels')
    await until(() => wakeUps.state().connected)
    assert.deepEqual(warned, ['wake_ups.not_subscribed'], 'it is said once')
    await admin.publish('project-api:wake-ups', 'events another-node')
    await until(() => heard.length === 1)
    await server.restart()
    await admin.call('ACL', 'SETUSER', 'node', 'on', '>pass', '+@all', 'allchannels')
    await until(() => wakeUps.state().connected)
    await admin.publish('project-api:wake-ups', 'deliveries another-node')
    await until(() => heard.length === 2)
    assert.deepEqual(heard, ['events', 'deliveries'])
  },
)
