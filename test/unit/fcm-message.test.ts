import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CommandLine } from '../../src/cli/io.ts'
import { loadJobTypes } from '../../src/cli/startup/load-job-types.ts'
import { buildFcmMessage, FCM_LIMITS, payloadBytesOf } from '../../src/push/fcm/fcm-message.ts'
import { fcm } from '../../src/push/fcm/fcm-provider.ts'
import type { PushMessage } from '../../src/push/push-provider.ts'
import { readMessage } from '../../src/sandbox/push-provider/message.ts'

const NOW_MS = Date.UTC(2026, 0, 1)

const messageWith = (more: Partial<PushMessage> = {}): PushMessage => ({
  token: 'device-1',
  title: 'Report ready',
  body: 'Your report is finished',
  data: { job_id: 'job_1' },
  tag: 'ntf_01kdvn7q00abcdefghjkmnpqrs',
  link: null,
  priority: 'high',
  ttlSeconds: 3600,
  dryRun: false,
  ...more,
})
const build = (more: Partial<PushMessage> = {}) => buildFcmMessage(messageWith(more), NOW_MS)

test('a message carries its texts, data, time to live and tag to all three platforms', () => {
  assert.deepEqual(build(), {
    message: {
      token: 'device-1',
      notification: { title: 'Report ready', body: 'Your report is finished' },
      data: { job_id: 'job_1' },
      android: { priority: 'high', ttl: '3600s', notification: { tag: 'ntf_01kdvn7q00abcdefghjkmnpqrs' } },
      apns: {
        headers: {
          'apns-collapse-id': 'ntf_01kdvn7q00abcdefghjkmnpqrs',
          'apns-expiration': String(NOW_MS / 1000 + 3600),
          'apns-priority': '10',
        },
        payload: { aps: { sound: 'default' } },
      },
      webpush: {
        headers: { Topic: 'ntf_01kdvn7q00abcdefghjkmnpqrs', TTL: '3600', Urgency: 'high' },
        notification: { tag: 'ntf_01kdvn7q00abcdefghjkmnpqrs' },
      },
    },
  })
})

test('a message of normal priority makes no sound on any platform', () => {
  const { android, apns, webpush } = build({ priority: 'normal' }).message
  assert.equal(android.priority, 'normal')
  assert.equal(apns.headers['apns-priority'], '5')
  assert.deepEqual(apns.payload, { aps: {} })
  assert.equal(webpush.headers.Urgency, 'normal')
})

test('a dry run is only validated', () => {
  assert.equal(build({ dryRun: true }).validate_only, true)
  assert.equal('validate_only' in build(), false)
})

test('apps get a link in the data, and the web gets it only when it is https', () => {
  const secure = build({ link: 'https://app.example.com/jobs/1' }).message
  assert.equal(secure.data?.link, 'https://app.example.com/jobs/1')
  assert.deepEqual(secure.webpush.fcm_options, { link: 'https://app.example.com/jobs/1' })
  const plain = build({ link: 'http://localhost:3000/' }).message
  assert.equal(plain.data?.link, 'http://localhost:3000/')
  assert.equal('fcm_options' in plain.webpush, false)
})

test('a link in the data is not overwritten', () => {
  assert.equal(build({ link: 'https://a.example', data: { link: 'app://b' } }).message.data?.link, 'app://b')
})

test('a message without data has no field for it', () => {
  assert.equal('data' in build({ data: {} }).message, false)
})

test('a time to live of zero expires at once, and none is longer than FCM allows', () => {
  const now = build({ ttlSeconds: 0 }).message
  assert.deepEqual([now.android.ttl, now.apns.headers['apns-expiration'], now.webpush.headers.TTL], ['0s', '0', '0'])
  assert.equal(build({ ttlSeconds: -3 }).message.android.ttl, '0s')
  assert.equal(build({ ttlSeconds: 1.9 }).message.android.ttl, '1s')
  assert.equal(build({ ttlSeconds: 1e9 }).message.android.ttl, '2419200s')
})

for (const tag of ['a'.repeat(33), 'with spaces', 'größer', '🧮'.repeat(40), 'x'.repeat(65), '']) {
  test(`the tag "${tag.slice(0, 12)}" of ${tag.length} fits every platform, and is the same every time`, () => {
    const { android, apns, webpush } = build({ tag }).message
    const again = build({ tag, token: 'device-2' }).message
    assert.equal(android.notification.tag, tag)
    assert.match(apns.headers['apns-collapse-id'] ?? '', /^[\x21-\x7e]{1,64}$/)
    assert.match(webpush.headers.Topic ?? '', /^[\w-]{1,32}$/)
    assert.deepEqual([again.apns.headers, again.webpush.headers], [apns.headers, webpush.headers])
    assert.notEqual(build({ tag: `${tag}!` }).message.webpush.headers.Topic, webpush.headers.Topic)
  })
}

test('the size counts the bytes of texts, data and link', () => {
  const content = { title: 'T', body: 'B', data: {}, link: null, tag: 't' }
  const size = payloadBytesOf(content)
  assert.equal(payloadBytesOf({ ...content, body: 'Bü' }), size + 2)
  assert.equal(payloadBytesOf({ ...content, body: 'B"' }), size + 2)
  // In the data, and once more for the web.
  assert.ok(payloadBytesOf({ ...content, link: 'https://a.example' }) > size + 2 * 17)
  assert.ok(payloadBytesOf({ ...content, tag: 't'.repeat(100) }) > size + 50)
})

test('FCM accepts a message of the largest payload', () => {
  const link = `https://app.example.com/${'x'.repeat(900)}`
  const content = { title: 'T', body: '', data: { k: 'v' }, link, tag: 't'.repeat(64) }
  const body = 'x'.repeat(FCM_LIMITS.payloadBytes - payloadBytesOf(content))
  assert.equal(payloadBytesOf({ ...content, body }), FCM_LIMITS.payloadBytes)
  const read = readMessage(JSON.stringify(build({ ...content, body })))
  assert.ok('token' in read)
})

test('FCM counts a link for the web twice', () => {
  const link = `https://app.example.com/${'x'.repeat(1_900)}`
  const read = readMessage(JSON.stringify(build({ link, body: 'x'.repeat(300) })))
  assert.deepEqual(read, { says: 'Message is too big', field: null })
})

test('configured texts that are too long for a push are reported by their place', () => {
  const load = (file: object) =>
    loadJobTypes({
      env: {},
      readFile: () => JSON.stringify(file),
      print: () => {},
    } as unknown as CommandLine)
  const long = { title: 'Ready', body: '長'.repeat(1_000) }
  const longest = { title: '長'.repeat(200), body: '長'.repeat(1_000) }
  const report = { assistant_id: 'report', output_key: 'report' }
  assert.doesNotThrow(() => load({ types: { report: { ...report, notifications: { completed: long } } } }))
  const types = { report: { ...report, notifications: { completed: longest, failed: long } } }
  assert.throws(
    () => load({ types, project_notifications: { created: long } }),
    (error: Error) => {
      assert.match(error.message, /\/types\/report\/notifications\/completed makes a push of \d+ bytes, over 3584/)
      assert.match(error.message, /\/project_notifications\/created makes a push/)
      assert.doesNotMatch(error.message, /failed/)
      return true
    },
  )
})

const content = { title: 'T', body: 'B', link: null, tag: 't' }

test('data under keys that FCM does not reserve is valid', () => {
  for (const data of [{}, { a: '' }, { fromage: 'x', 'my.google': 'x', gcm: 'x', message_types: 'x' }]) {
    assert.equal(fcm.validate({ ...content, data }), null)
  }
})

for (const key of ['from', 'message_type', 'google.a', 'gcm.notification.title', 'gcm.a', 'google.\n']) {
  test(`the data key ${JSON.stringify(key)} is reserved`, () => {
    const fault = fcm.validate({ ...content, data: { fine: 'x', [key]: 'x' } })
    assert.deepEqual(fault, { path: `/data/${key}`, problem: 'is reserved by the push provider' })
  })
}
