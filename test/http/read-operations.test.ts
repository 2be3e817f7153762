import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { assertError } from '../support/assert-error.ts'
import { openStream, type StreamedEvent } from '../support/event-stream.ts'
import { RUN_MS, type ShownJob, sharedJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

const FORBIDDEN = { status: 403, code: 'forbidden', message: 'Insufficient scope' } as const

describe('read:operations', () => {
  forEachService((under) => {
    const started = sharedJobWorld(under)

    test('a caller with read:operations sees the jobs of every owner, with timeline, documents, counts and streams', async () => {
      const world = await started()
      const token = world.service.tokenFor({ sub: 'watcher', scopes: ['read:operations'] })
      const read = <Body>(path: string) => world.service.request<Body>('GET', path, { token })
      const stream = await openStream(world.service.url, '/v1/events?all=true', { token })
      const job = await world.start('report', { sub: 'watched' })
      await world.pass(RUN_MS)
      const shown = await read<ShownJob>(`/jobs/${job.id}`)
      assert.deepEqual(
        [shown.status, shown.body.status, shown.body.input],
        [200, 'completed', { title: 'Done', n: 42 }],
      )
      const listed = await read<{ data: ShownJob[] }>('/jobs?created_by=watched')
      assert.deepEqual(
        listed.body.data.map(({ id }) => id),
        [job.id],
      )
      assert.equal((await read(`/jobs/${job.id}/timeline`)).status, 200)
      const counted = await read<{ counts: Record<string, number> }>('/v1/jobs/counts')
      assert.ok((counted.body.counts.completed ?? 0) >= 1)
      const hasEnded = ({ event, data }: StreamedEvent) =>
        event === 'job.completed' && (data.data as { job_id: string }).job_id === job.id
      await stream.until(() => stream.received.some(hasEnded))
      stream.close()
      const own = await openStream(world.service.url, `/jobs/${job.id}/events?after=0`, { token })
      await own.until(() => own.received.some(hasEnded))
      own.close()
    })

    test('a caller with read:operations changes nothing: a change of another owner’s job is 403, and the job stays', async () => {
      const world = await started()
      const token = world.service.tokenFor({ sub: 'watcher', scopes: ['read:operations'] })
      const { id } = await world.start('pausing', { sub: 'watched' })
      await world.pass(RUN_MS)
      const attempts: [method: string, path: string, body?: object][] = [
        ['POST', `/jobs/${id}/cancel`],
        ['POST', `/jobs/${id}/retry`],
        ['POST', `/jobs/${id}/check`],
        ['POST', `/jobs/${id}/resume`, { input: 1 }],
        ['DELETE', `/jobs/${id}`],
        ['POST', '/jobs', { type: 'report', input: {}, created_by: 'watched' }],
      ]
      for (const [method, path, body] of attempts) {
        const answer = await world.service.request(method, path, { token, ...(body && { body }) })
        assertError(world.service, answer, FORBIDDEN)
        assert.equal(answer.headers['www-authenticate'], 'Bearer error="insufficient_scope", scope="admin:*"')
      }
      assert.equal((await world.stored(id)).status, 'awaiting_input')
    })

    test('a caller with read:operations keeps the rights of an owner over jobs of its own', async () => {
      const world = await started()
      const token = world.service.tokenFor({ sub: 'busy watcher', scopes: ['read:operations'] })
      const created = await world.service.request<ShownJob>('POST', '/jobs', {
        token,
        body: { type: 'pausing', input: {} },
      })
      await world.pass(RUN_MS)
      const cancelled = await world.service.request<ShownJob>('POST', `/jobs/${created.body.id}/cancel`, { token })
      assert.deepEqual([cancelled.status, cancelled.body.status], [200, 'cancelled'])
    })

    test('the scope read:operations implies neither read:users nor read:projects', async () => {
      const world = await started()
      const token = world.service.tokenFor({ sub: 'watcher', scopes: ['read:operations'] })
      for (const path of ['/v1/users', '/v1/users/ada', '/v1/users/ada/usage', '/v1/projects']) {
        assertError(world.service, await world.service.request('GET', path, { token }), FORBIDDEN)
      }
    })
  })
})
