import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { describe, test } from 'node:test'
import { CallbackAuthenticity } from '../../src/auth/callback-authenticity.ts'
import { ManualClock } from '../support/manual-clock.ts'

const JOB = 'job_1'
const clock = new ManualClock()
const live = new CallbackAuthenticity(['new-secret', 'old-secret'], clock)
const REFUSED = { authentic: false, signed: false }

function check(headers: IncomingHttpHeaders, query: { token?: string; jobId?: string } = {}) {
  return live.check({ headers, token: query.token, jobId: query.jobId })
}

function tokenOf(secret: string, jobId = JOB): string {
  return new CallbackAuthenticity([secret], clock).tokenFor(jobId) ?? ''
}

interface Signature {
  key: string | Buffer
  id?: string
  timestamp?: string
  body?: Buffer
}

const BODY = Buffer.from('{"run_id":"r"}')
const NOW = String(clock.now() / 1000)

function sign({ key, id = 'msg_1', timestamp = NOW, body = BODY }: Signature): IncomingHttpHeaders {
  const digest = createHmac('sha256', key).update(`${id}.${timestamp}.`).update(body).digest('base64')
  return { 'webhook-id': id, 'webhook-timestamp': timestamp, 'webhook-signature': `v1,${digest}` }
}

describe('the token of a job', () => {
  test('the token of a job proves a callback of that job and of no other', () => {
    const token = live.tokenFor(JOB) ?? ''
    assert.deepEqual(check({}, { token, jobId: JOB }), { authentic: true, jobId: JOB })
    for (const jobId of ['job_2', '', `${JOB} `, undefined]) {
      assert.deepEqual(check({}, { token, ...(jobId === undefined ? {} : { jobId }) }), REFUSED)
    }
  })

  test('a token of either live secret is accepted, new ones are made with the first, and one of a third secret is refused', () => {
    assert.equal(live.tokenFor(JOB), tokenOf('new-secret'))
    assert.deepEqual(check({}, { token: tokenOf('old-secret'), jobId: JOB }), { authentic: true, jobId: JOB })
    assert.deepEqual(check({}, { token: tokenOf('older-secret'), jobId: JOB }), REFUSED)
  })

  test('a token that is altered, truncated or empty is refused, and so is the secret in its place', () => {
    const token = live.tokenFor(JOB) ?? ''
    for (const wrong of ['', token.slice(0, -1), `${token}A`, token.toUpperCase(), 'new-secret', ` ${token}`]) {
      assert.deepEqual(check({}, { token: wrong, jobId: JOB }), REFUSED, wrong)
    }
  })

  test('the token of a job does not reveal the secret, and can be part of a URL', () => {
    assert.match(live.tokenFor(JOB) ?? '', /^[\w-]{43}$/)
  })
})

describe('the shared secret', () => {
  test('the shared secret proves a callback in either header, of either live secret, and binds it to no job', () => {
    for (const secret of ['new-secret', 'old-secret']) {
      for (const headers of [
        { 'x-webhook-secret': secret },
        { authorization: `Bearer ${secret}` },
        { authorization: `bearer  ${secret}` },
      ]) {
        assert.deepEqual(check(headers, { jobId: JOB }), { authentic: true, jobId: null })
      }
    }
  })

  test('the shared secret in any other form proves nothing', () => {
    const wrong: IncomingHttpHeaders[] = [
      {},
      { 'x-webhook-secret': '' },
      { 'x-webhook-secret': 'new-secre' },
      { 'x-webhook-secret': 'new-secret ' },
      { 'x-webhook-secret': 'new-secret,old-secret' },
      { 'x-webhook-secret': ['new-secret'] as never },
      { authorization: 'new-secret' },
      { authorization: 'Basic new-secret' },
      { authorization: 'Bearer' },
      { authorization: 'Bearer new-secret old-secret' },
    ]
    for (const headers of wrong) assert.deepEqual(check(headers), REFUSED, JSON.stringify(headers))
  })

  test('the shared secret beside a wrong token still proves a callback, and a good token beside a wrong secret does too', () => {
    assert.deepEqual(check({ 'x-webhook-secret': 'new-secret' }, { token: 'wrong', jobId: JOB }), {
      authentic: true,
      jobId: null,
    })
    const token = tokenOf('new-secret')
    assert.deepEqual(check({ 'x-webhook-secret': 'wrong' }, { token, jobId: JOB }), { authentic: true, jobId: JOB })
  })
})

describe('a signature over the body', () => {
  const holds = (headers: IncomingHttpHeaders, body = BODY) => live.checkSignature(headers, body)

  test('a signature is announced before the body is there, and decided with it', () => {
    const headers = sign({ key: 'new-secret' })
    assert.deepEqual(check(headers), { authentic: false, signed: true })
    assert.equal(holds(headers), true)
  })

  test('a signature of either live secret holds, and of no other', () => {
    assert.equal(holds(sign({ key: 'old-secret' })), true)
    assert.equal(holds(sign({ key: 'older-secret' })), false)
  })

  test('a signature with a whsec_ key is made with the bytes of the key', () => {
    const key = Buffer.from('0123456789abcdef0123456789abcdef')
    const webhooks = new CallbackAuthenticity([`whsec_${key.toString('base64')}`], clock)
    assert.equal(webhooks.checkSignature(sign({ key }), BODY), true)
    assert.equal(webhooks.checkSignature(sign({ key: `whsec_${key.toString('base64')}` }), BODY), false)
  })

  test('a signature among others in the header holds; those of another version do not count', () => {
    const headers = sign({ key: 'new-secret' })
    const good = String(headers['webhook-signature'])
    assert.equal(holds({ ...headers, 'webhook-signature': `v1,AAAA v1a,BBBB ${good}` }), true)
    assert.equal(holds({ ...headers, 'webhook-signature': good.replace('v1,', 'v2,') }), false)
    assert.equal(holds({ ...headers, 'webhook-signature': good.slice(3) }), false)
    assert.equal(holds({ ...headers, 'webhook-signature': '' }), false)
  })

  test('a signature holds for five minutes either way, and not a second more', () => {
    const at = (seconds: number) => sign({ key: 'new-secret', timestamp: String(Number(NOW) + seconds) })
    for (const seconds of [-300, -299, 0, 299, 300]) assert.equal(holds(at(seconds)), true, `${seconds} s`)
    for (const seconds of [-301, 301, -86_400, 86_400]) assert.equal(holds(at(seconds)), false, `${seconds} s`)
  })

  test('a signature over other bytes, another id or another time does not hold', () => {
    const headers = sign({ key: 'new-secret' })
    assert.equal(holds(headers, Buffer.from('{"run_id":"x"}')), false)
    assert.equal(holds(headers, Buffer.concat([BODY, Buffer.from(' ')])), false)
    assert.equal(holds(headers, Buffer.alloc(0)), false)
    assert.equal(holds({ ...headers, 'webhook-id': 'msg_2' }), false)
    assert.equal(holds({ ...headers, 'webhook-timestamp': String(Number(NOW) + 1) }), false)
  })

  test('a signature without all of its headers, or with an invalid time, does not hold', () => {
    const headers = sign({ key: 'new-secret' })
    for (const name of ['webhook-id', 'webhook-timestamp', 'webhook-signature']) {
      assert.equal(holds({ ...headers, [name]: undefined }), false, name)
    }
    assert.equal(holds(sign({ key: 'new-secret', id: '' })), false, 'an empty id')
    for (const timestamp of ['', 'now', '-1', '1e9', ` ${NOW}`, `${NOW}.0`, '9'.repeat(13), 'NaN']) {
      assert.equal(holds(sign({ key: 'new-secret', timestamp })), false, timestamp)
    }
  })
})

describe('without any secret', () => {
  const open = new CallbackAuthenticity([], clock)

  test('every callback passes if there is no secret, and no token is made', () => {
    assert.equal(open.acceptsAll, true)
    assert.equal(live.acceptsAll, false)
    assert.equal(open.tokenFor(JOB), null)
    assert.deepEqual(open.check({ headers: {}, token: undefined, jobId: JOB }), { authentic: true, jobId: null })
  })

  test('a signature proves nothing', () => {
    assert.equal(open.checkSignature(sign({ key: '' }), BODY), false)
  })
})
