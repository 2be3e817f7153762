import assert from 'node:assert/strict'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import fastify from 'fastify'
import { ApiError } from '../../src/core/errors.ts'
import type { App } from '../../src/http/app-instance.ts'
import { consolePages } from '../../src/ops/console-pages.ts'

const SETTINGS = {
  issuerUrl: 'https://issuer.example.com/pool',
  clientId: '4k2n',
  authUrl: 'https://login.example.com',
  dev: null,
}

describe('the pages of the console', () => {
  let folder: string
  before(() => {
    folder = mkdtempSync(join(tmpdir(), 'console-'))
    mkdirSync(join(folder, 'assets'))
    writeFileSync(join(folder, 'index.html'), '<!doctype html><title>Console</title>')
    writeFileSync(join(folder, 'assets', 'index-1a2b.js'), 'start()')
    writeFileSync(join(folder, 'assets', 'notes.txt'), 'not for browsers')
    writeFileSync(join(folder, 'secret.js'), 'secret')
  })
  after(() => rmSync(folder, { recursive: true }))

  function serve(from: string): App {
    const app: App = fastify()
    app.setErrorHandler((error, _request, reply) => reply.code(error instanceof ApiError ? error.status : 500).send())
    consolePages(app, { folder: from, settings: SETTINGS })
    return app
  }

  test('every path below /console is the page, under a policy that allows the sign-in and nothing foreign', async () => {
    const app = serve(folder)
    for (const path of ['/console', '/console/', '/console/jobs', '/console/jobs/job_1?status=failed']) {
      const { statusCode, headers } = await app.inject(path)
      assert.equal(statusCode, 200, path)
      const policy = String(headers['content-security-policy'])
      assert.match(policy, /default-src 'none'/)
      assert.match(policy, /script-src 'self';/)
      assert.match(policy, /connect-src 'self' https:\/\/issuer\.example\.com https:\/\/login\.example\.com;/)
      assert.equal(headers['cache-control'], 'no-cache')
    }
  })

  test('assets are kept by caches for good, and no other file is served', async () => {
    const app = serve(folder)
    const { statusCode, headers } = await app.inject('/console/assets/index-1a2b.js')
    assert.deepEqual(
      [statusCode, headers['content-type'], headers['cache-control']],
      [200, 'text/javascript; charset=utf-8', 'public, max-age=31536000, immutable'],
    )
    for (const name of ['none.js', 'notes.txt', '..%2fsecret.js', '%2e%2e%2fsecret.js', '__proto__']) {
      assert.equal((await app.inject(`/console/assets/${name}`)).statusCode, 404, name)
    }
  })

  test('the settings name the client and the sign-in address', async () => {
    assert.deepEqual((await serve(folder).inject('/console/settings.json')).json(), SETTINGS)
  })

  test('a console that is not built says how to build it', async () => {
    const { statusCode, body } = await serve(join(folder, 'missing')).inject('/console')
    assert.equal(statusCode, 200)
    assert.match(body, /npm run build/)
  })
})
