import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { assertError } from '../support/assert-error.ts'
import { RUN_MS, type ShownJob, sharedJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

interface Export {
  sub: string
  profile: { sub: string } | null
  usage: { runs: number }[]
  devices: { token: string }[]
  projects: { name: string }[]
  conversations: { thread_id: string; type: string; title: string | null; newest_job: string }[]
  jobs: (ShownJob & { notifications: object[] })[]
  notifications: { title: string; body: string }[]
}

describe('all data of one user', () => {
  forEachService((under) => {
    const started = sharedJobWorld(under)

    test('the data of a user is exported as one document: profile, usage, devices, projects and jobs with exact numbers', async () => {
      const world = await started()
      const { service } = world
      const token = service.tokenFor({ sub: 'ada', email: 'ada@example.com', scopes: ['write:projects'] })
      const send = (path: string, body: object) => service.request('POST', path, { token, body })
      await send('/v1/projects', { name: 'Engine' })
      await send('/v1/devices', { token: 'a-device-token-1234567', platform: 'web' })
      const notification = { title: 'Hello', body: 'Ada', users: ['ada'] }
      await service.request('POST', '/v1/notifications', { token: world.admin, body: notification })
      const raw = '{"type":"report","input":{"n":12345678901234567890,"z":-0}}'
      const headers = { 'content-type': 'application/json' }
      assert.equal((await service.request('POST', '/jobs', { token, raw, headers })).status, 202)
      await world.quiet()
      await world.pass(RUN_MS)
      await world.start('report', { sub: 'another' })
      const answer = await service.request<Export>('GET', '/v1/users/ada/export', { token: world.admin })
      assert.equal(answer.status, 200, answer.text)
      assert.match(String(answer.headers['content-type']), /^application\/json/)
      assert.ok(answer.text.includes('{"n":12345678901234567890,"z":-0}'), 'the input is exact')
      const { body } = answer
      assert.equal(body.sub, 'ada')
      assert.equal(body.profile?.sub, 'ada')
      assert.deepEqual(
        [body.jobs.map(({ created_by }) => created_by), body.projects.map(({ name }) => name), body.usage.length],
        [['ada'], ['Engine'], 1],
      )
      assert.deepEqual(
        body.devices.map((device) => device.token),
        ['…234567'],
      )
      assert.deepEqual(
        body.notifications.map(({ title, body: text }) => [title, text]),
        [['Hello', 'Ada']],
      )
      const [job] = body.jobs
      assert.deepEqual(body.conversations, [
        { thread_id: job?.thread_id, type: 'report', title: null, newest_job: job?.id },
      ])
      const audit = await service.request<{ data: { action: string }[] }>('GET', '/v1/audit?object=ada', {
        token: world.admin,
      })
      assert.deepEqual(
        audit.body.data.map(({ action }) => action),
        ['user.exported'],
      )
    })

    test('the data of a user is exported with the output of a job whose callback was lost', async () => {
      const world = await started()
      world.runtime.setFaults({ drop_callbacks: 1 })
      const { id } = await world.start('report', { sub: 'waiting' })
      await world.clock.advance(RUN_MS + 1_700)
      const { body } = await world.service.request<Export>('GET', '/v1/users/waiting/export', { token: world.admin })
      world.runtime.setFaults({ drop_callbacks: 0 })
      assert.deepEqual(
        body.jobs.map((job) => [job.id, job.status, job.settled_by, job.output]),
        [[id, 'completed', 'read', { title: 'Done', n: 42 }]],
      )
    })

    test('the data of a user is exported whole when it takes many pages', async () => {
      const world = await started()
      const { service } = world
      const token = service.tokenFor({ sub: 'busy', scopes: ['write:projects'] })
      const names = Array.from({ length: 101 }, (_, i) => `Project ${i}`)
      for (const name of names) await service.request('POST', '/v1/projects', { token, body: { name } })
      const { body } = await service.request<Export>('GET', '/v1/users/busy/export', { token: world.admin })
      assert.deepEqual(body.projects.map(({ name }) => name).reverse(), names)
    })

    test('the data of an unknown user is a 404', async () => {
      const { service, admin } = await started()
      const answer = await service.request('GET', '/v1/users/unknown-user/export', { token: admin })
      assertError(service, answer, { status: 404, code: 'not_found', message: 'No such user' })
    })

    test('the name me stands for the caller in every path', async () => {
      const { service } = await started()
      const caller = { sub: 'the-admin', scopes: ['admin:*'] }
      const send = (method: string, path: string, body?: object) =>
        service.request<{ data: object[]; sub: string }>(method, path, { token: service.tokenFor(caller), body })
      const device = { token: 'a-device-of-the-admin', platform: 'ios' }
      assert.equal((await send('POST', '/v1/devices', device)).status, 201)
      assert.equal((await send('GET', '/v1/users/me/devices')).body.data.length, 1)
      assert.equal((await send('GET', '/v1/users/me/export')).body.sub, caller.sub)
      const usage = await Promise.all([send('GET', '/v1/users/me/usage'), send('GET', '/v1/usage')])
      assert.equal(usage[0].text, usage[1].text)
      const conflict = (message: string) => ({ status: 409, code: 'conflict', message }) as const
      assertError(service, await send('POST', '/v1/users/me/block'), conflict('You cannot block yourself'))
      assertError(service, await send('DELETE', '/v1/users/me'), conflict('You cannot erase yourself'))
    })

    test('the devices of a user are listed with read:users, never their tokens', async () => {
      const { service } = await started()
      const own = service.tokenFor({ sub: 'owner' })
      await service.request('POST', '/v1/devices', {
        token: own,
        body: { token: 'secret-token-abcdef', platform: 'ios' },
      })
      const token = service.tokenFor({ sub: 'reader', scopes: ['read:users'] })
      const { body } = await service.request<{ data: object[] }>('GET', '/v1/users/owner/devices', { token })
      assert.equal(body.data.length, 1)
      assert.ok(!JSON.stringify(body).includes('secret-token'))
    })
  })
})
