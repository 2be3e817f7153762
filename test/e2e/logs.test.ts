import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Served, sharedIssuer, startServe } from '../support/served.ts'

const CANARY = 'canary7f3a'

interface Sent {
  method: string
  path: string
  token?: string
  key?: string
  headers?: Record<string, string>
  raw?: string
}

/** Requests with a secret in every possible place, some that succeed and some that fail. */
async function secretRequests(served: Served): Promise<Sent[]> {
  const issuer = await sharedIssuer()
  const scopes = ['read:projects', 'write:projects']
  const token = issuer.mint({ sub: 'a-user', email: `${CANARY}@example.com`, scopes })
  const admin = issuer.mint({ sub: 'root', scopes: ['admin:*'] })
  const json = { 'content-type': 'application/json' }
  const body = (value: object) => ({ headers: json, raw: JSON.stringify(value) })
  const account = { name: CANARY, scopes: ['read:projects'] }
  const { body: made } = await served.request<{ key: string }>('POST', '/v1/service-accounts', {
    token: admin,
    body: account,
  })
  assert.match(made.key, /^pak_/)
  return [
    { method: 'GET', path: '/v1/projects', token },
    { method: 'GET', path: '/v1/projects', token: issuer.mint({ expiresInSeconds: -60 }) },
    { method: 'GET', path: '/v1/projects', token: `${token.slice(0, -8)}${CANARY}` },
    { method: 'GET', path: '/v1/projects', headers: { authorization: `Basic ${CANARY}` } },
    { method: 'GET', path: '/v1/projects', headers: { cookie: `session=${CANARY}` } },
    { method: 'GET', path: '/v1/projects', key: made.key },
    { method: 'GET', path: '/v1/projects', key: `pak_${CANARY}` },
    { method: 'GET', path: `/v1/projects?cursor=${CANARY}&token=${CANARY}`, token },
    { method: 'GET', path: `/v1/projects/${CANARY}`, token },
    { method: 'GET', path: `/${CANARY}?secret=${CANARY}` },
    { method: 'POST', path: `/webhooks/agent?token=${CANARY}`, ...body({ kwargs: { webhook: CANARY } }) },
    { method: 'POST', path: '/v1/projects', token, ...body({ name: CANARY, metadata: { [CANARY]: CANARY } }) },
    { method: 'POST', path: '/v1/projects', token, ...body({ name: [CANARY] }) },
    { method: 'POST', path: '/v1/projects', token, headers: json, raw: `{"name":"${CANARY}` },
    { method: 'POST', path: '/v1/projects', token, headers: { 'content-type': CANARY }, raw: CANARY },
    { method: 'PATCH', path: '/v1/users/me', token, ...body({ display_name: CANARY }) },
    { method: 'PATCH', path: '/v1/users/me', token, headers: { ...json, 'if-match': CANARY }, raw: '{}' },
    { method: 'GET', path: `/v1/users/${CANARY}`, token: admin },
  ]
}

test('a log has one JSON line per request with its id, and contains no token, key, header, body or query', async () => {
  const served = await startServe({ settings: { LOG_LEVEL: 'debug', WEBHOOK_SECRET: CANARY } })
  const requests = await secretRequests(served)
  const answers = new Map<string, number>()
  const codes = new Map<string, string | undefined>()
  for (const { method, path, ...options } of requests) {
    const { headers, status, body } = await served.request<{ error?: { code: string } }>(method, path, options)
    answers.set(String(headers['x-request-id']), status)
    codes.set(String(headers['x-request-id']), body.error?.code)
  }
  served.program.signal('SIGINT')
  const { output, errors } = await served.program.untilEnded()

  const lines = output
    .trimEnd()
    .split('\n')
    .map((line) => JSON.parse(line) as Record<string, unknown>)
  const completed = lines.filter(({ msg, requestId }) => msg === 'request.completed' && answers.has(String(requestId)))
  assert.deepEqual(new Map(completed.map(({ requestId, status }) => [requestId, status])), answers)
  assert.equal(completed.length, requests.length)
  assert.deepEqual(new Map(completed.map(({ requestId, errorCode }) => [requestId, errorCode])), codes)
  assert.ok(new Set(codes.values()).has('unauthorized'), 'some were refused')
  const callers = new Set(completed.map(({ caller }) => (/^key_/.test(String(caller)) ? 'key_…' : caller)))
  assert.deepEqual(callers, new Set(['a-user', null, 'key_…', 'root']), 'each line names its proven caller')
  for (const line of lines) {
    assert.equal(typeof line.msg, 'string')
    assert.match(String(line.time), /^\d{4}-\d\d-\d\dT[\d:.]+Z$/)
  }

  assert.equal(errors, '')
  assert.ok(!output.includes(CANARY), `a secret is in ${lineWith(output, CANARY)}`)
  for (const { token, key } of requests) {
    for (const secret of [token, token?.split('.')[2], key]) {
      assert.ok(secret === undefined || !output.includes(secret), 'a credential is in the log')
    }
  }
  assert.doesNotMatch(output, /authorization|bearer|x-api-key|pak_/i)
  // A token begins so. Ids have no capital letters.
  assert.doesNotMatch(output, /eyJ/)
})

function lineWith(text: string, word: string): string | undefined {
  return text.split('\n').find((line) => line.includes(word))
}
