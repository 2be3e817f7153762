import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { needsChromium, openPage } from '../support/browser.ts'
import { Program } from '../support/program.ts'
import { sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'

describe('in a real browser, from another origin', needsChromium(), () => {
  let site: Server
  let allowed: string
  let foreign: string
  before(async () => {
    site = createServer((_request, response) => response.setHeader('content-type', 'text/html').end('<h1>An app</h1>'))
    await once(site.listen(0, '127.0.0.1'), 'listening')
    const { port } = site.address() as AddressInfo
    allowed = `http://localhost:${port}`
    foreign = `http://127.0.0.1:${port}`
  })
  after(() => site.close())

  for (const variant of ['A', 'B']) {
    test(`a script of an allowed origin uses variant ${variant}, and one of another origin reads nothing`, async () => {
      const settings = { API_VARIANT: variant, CORS_ORIGINS: allowed, RATE_LIMIT_AUTHENTICATED: '4' }
      const served = await startServe({ settings })
      const token = (await sharedIssuer()).mint({ sub: 'visitor', scopes: ['admin:*'] })
      const { page } = await openPage(allowed)
      const seen = await page.evaluate(visit, { url: served.url, token })
      const created = seen[0]
      assert.equal(created?.status, 201)
      assert.match(created?.headers.location ?? '', /^\/v1\/projects\/prj_/)
      for (const name of ['etag', 'x-request-id', 'ratelimit-limit', 'ratelimit-remaining', 'ratelimit-reset']) {
        assert.ok(created?.headers[name], name)
      }
      assert.deepEqual(
        seen.map(({ status }) => status),
        [201, 200, 200, 200, 429, 401, 404],
      )
      assert.equal(seen[1]?.text, ':stream', 'a stream can be read')
      assert.ok(seen[4]?.headers['retry-after'])
      const envelope = variant === 'A' ? 'detail' : 'error'
      for (const refusal of seen.slice(4)) assert.ok(JSON.parse(refusal.text)[envelope], refusal.text)

      const other = await openPage(foreign)
      assert.deepEqual(await other.page.evaluate(reads, served.url), [false, false])
    })
  }

  test('dev is used from every origin on this machine', async () => {
    const port = String(await freePort())
    const dev = new Program(['dev'], { settings: { PORT: port, CORS_ORIGINS: 'https://app.example.com' } })
    await dev.untilSaid(/Ctrl-C/)
    for (const origin of [allowed, foreign]) {
      const { page } = await openPage(origin)
      assert.deepEqual(await page.evaluate(reads, `http://127.0.0.1:${port}`), [true, true], origin)
    }
  })
})

interface Seen {
  status: number
  headers: Record<string, string>
  text: string
}

/** Runs in the page: one answer of each kind, as a script sees it. */
async function visit({ url, token }: { url: string; token: string }): Promise<Seen[]> {
  const authorization = `Bearer ${token}`
  const ask = async (path: string, init: RequestInit): Promise<Seen> => {
    const response = await fetch(url + path, init)
    const headers = Object.fromEntries(response.headers)
    if (!headers['content-type']?.startsWith('text/event-stream')) {
      return { status: response.status, headers, text: await response.text() }
    }
    const reader = response.body?.getReader()
    const { done } = (await reader?.read()) ?? { done: true }
    await reader?.cancel()
    return { status: response.status, headers, text: done ? '' : ':stream' }
  }
  const json = { 'content-type': 'application/json', 'idempotency-key': 'first' }
  const resume = { authorization, 'last-event-id': '0', 'cache-control': 'no-cache' }
  return [
    await ask('/v1/projects', { method: 'POST', headers: { authorization, ...json }, body: '{"name":"x"}' }),
    await ask('/v1/events', { headers: resume }),
    await ask('/v1/projects', { headers: { authorization, 'if-none-match': '"0"' } }),
    await ask('/v1/users/me', { headers: { authorization, 'x-request-id': 'mine' } }),
    await ask('/v1/projects', { headers: { authorization } }),
    await ask('/v1/projects', { headers: { authorization: 'Bearer nonsense' } }),
    await ask('/nothing', {}),
  ]
}

/** Runs in the page: whether a simple request and one with a preflight can be read. */
async function reads(url: string): Promise<boolean[]> {
  const isRead = (init: RequestInit) =>
    fetch(`${url}/healthz`, init)
      .then(({ ok }) => ok)
      .catch(() => false)
  return [await isRead({}), await isRead({ headers: { authorization: 'Bearer x' } })]
}
