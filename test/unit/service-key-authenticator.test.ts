import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createServiceKey, hashServiceKey } from '../../src/auth/service-key.ts'
import { ServiceKeyAuthenticator } from '../../src/auth/service-key-authenticator.ts'
import { UnavailableError } from '../../src/core/errors.ts'
import { silentLog } from '../../src/core/log.ts'
import { systemRandom } from '../../src/core/random.ts'
import { ManualClock } from '../support/manual-clock.ts'

test('random keys cannot evict a good one from the cache', async () => {
  const good = createServiceKey(systemRandom)
  const looked: string[] = []
  const store = {
    findLive: async (hash: string) => {
      looked.push(hash)
      const row = { key_id: 'key_1', account_id: 'svc_1', scopes: '', key_expires_at: null, account_expires_at: null }
      return hash === hashServiceKey(good) ? row : undefined
    },
    markUsed: async () => {},
  }
  const authenticator = new ServiceKeyAuthenticator({ store, clock: new ManualClock(), log: silentLog })
  assert.ok(await authenticator.authenticate(good))
  const random = Array.from({ length: 10_001 }, () => createServiceKey(systemRandom))
  for (const key of random) assert.equal(await authenticator.authenticate(key), null)
  assert.ok(await authenticator.authenticate(good))
  assert.equal(looked.filter((hash) => hash === hashServiceKey(good)).length, 1)
  await authenticator.close()
})

test('a key that was valid stays valid for an hour while the database is down, and no other key is accepted', async () => {
  const [good, other] = [createServiceKey(systemRandom), createServiceKey(systemRandom)]
  const clock = new ManualClock()
  let isDown = false
  const store = {
    findLive: async (hash: string) => {
      if (isDown) throw new UnavailableError('The database is unavailable', { cause: new Error('connection refused') })
      const row = { key_id: 'key_1', account_id: 'svc_1', scopes: '', key_expires_at: null, account_expires_at: null }
      return hash === hashServiceKey(good) ? row : undefined
    },
    markUsed: async () => {},
  }
  const authenticator = new ServiceKeyAuthenticator({ store, clock, log: silentLog })
  assert.ok(await authenticator.authenticate(good))
  assert.equal(await authenticator.authenticate(other), null)
  isDown = true
  await clock.leap(3_599_000)
  assert.ok(await authenticator.authenticate(good))
  await assert.rejects(authenticator.authenticate(other), UnavailableError)
  await clock.leap(1_000)
  await assert.rejects(authenticator.authenticate(good), UnavailableError)
  isDown = false
  assert.ok(await authenticator.authenticate(good))
  await authenticator.close()
})

test('only a lookup of an unknown key needs a check, and only a key that is not found fails it', async () => {
  const [good, bad] = [createServiceKey(systemRandom), createServiceKey(systemRandom)]
  const clock = new ManualClock()
  let isDown = false
  const store = {
    findLive: async (hash: string) => {
      if (isDown) throw new UnavailableError('The database is unavailable')
      const row = { key_id: 'key_1', account_id: 'svc_1', scopes: '', key_expires_at: null, account_expires_at: null }
      return hash === hashServiceKey(good) ? row : undefined
    },
    markUsed: async () => {},
  }
  const authenticator = new ServiceKeyAuthenticator({ store, clock, log: silentLog })
  const ended: boolean[] = []
  const begin = () => (hasFailed: boolean) => void ended.push(hasFailed)
  const refuse = () => null
  assert.equal(await authenticator.authenticate('pak_x', refuse), null, 'its shape is wrong')
  assert.equal(await authenticator.authenticate(good, refuse), 'unchecked')
  assert.ok(await authenticator.authenticate(good, begin))
  assert.equal(await authenticator.authenticate(bad, begin), null)
  assert.deepEqual(ended, [false, true])
  assert.equal(await authenticator.authenticate(bad, refuse), null, 'it is cached')
  await clock.leap(30_000)
  assert.notEqual(await authenticator.authenticate(good, refuse), 'unchecked', 'it was valid before')
  isDown = true
  await assert.rejects(async () => authenticator.authenticate(bad, begin), UnavailableError)
  assert.deepEqual(ended, [false, true, false])
  await authenticator.close()
})
