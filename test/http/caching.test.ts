import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { openStream } from '../support/event-stream.ts'
import { onOneService } from '../support/service.ts'

const READS = [
  '/v1/projects',
  '/v1/projects?limit=1',
  '/v1/users',
  '/v1/users/me',
  '/v1/usage',
  '/v1/devices',
  '/v1/job-types',
  '/v1/callbacks',
  '/v1/service-accounts',
  '/jobs',
]

describe('what caches may keep', () => {
  onOneService((under) => {
    test('every authenticated read is private and asked for again before it is used', async () => {
      const service = await under.shared()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      for (const path of READS) {
        for (const method of ['GET', 'HEAD']) {
          const { status, headers } = await service.request(method, path, { token })
          assert.deepEqual([status, headers['cache-control']], [200, 'private, no-cache'], `${method} ${path}`)
        }
      }
      const { body } = await service.request<{ key: string }>('POST', '/v1/service-accounts', {
        token,
        body: { name: 'reader', scopes: ['read:projects'] },
      })
      const byKey = await service.request('GET', '/v1/projects', { key: body.key })
      assert.equal(byKey.headers['cache-control'], 'private, no-cache')
      const gone = await service.request('GET', '/v1/projects/prj_none', { token })
      assert.deepEqual([gone.status, gone.headers['cache-control']], [404, 'private, no-cache'])
    })

    test('streams and metrics are kept by no cache, and public answers are not called private', async () => {
      const service = await under.shared()
      const token = service.tokenFor({ scopes: ['admin:*'] })
      const stream = await openStream(service.url, '/v1/events', { token })
      assert.equal(stream.headers['cache-control'], 'no-store')
      stream.close()
      assert.equal((await service.request('GET', '/metrics', { token })).headers['cache-control'], 'no-store')
      for (const path of ['/healthz', '/readyz', '/openapi.json', '/docs']) {
        assert.equal((await service.request('GET', path, { token })).headers['cache-control'], undefined, path)
      }
    })
  })
})
