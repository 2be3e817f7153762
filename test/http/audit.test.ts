import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { trimAudit } from '../../src/audit/audit-store.ts'
import { recordAudit } from '../../src/audit/record-audit.ts'
import { sql } from '../../src/db/sql.ts'
import { assertError } from '../support/assert-error.ts'
import { RUN_MS, type ShownJob, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { forEachService } from '../support/service.ts'

interface Entry {
  id: string
  at: string
  actor: { kind: string; id: string }
  action: string
  object: { kind: string; id: string }
  before: Record<string, unknown> | null
  after: Record<string, unknown> | null
  address: string | null
  request_id: string | null
}
interface Page {
  data: Entry[]
  has_more: boolean
  next_cursor: string | null
}

describe('GET /v1/audit', () => {
  forEachService((under) => {
    const started = sharedJobWorld(under)
    const list = async (query: string) => {
      const world = await started()
      const token = world.service.tokenFor({ sub: 'auditor', scopes: ['read:operations'] })
      const answer = await world.service.request<Page>('GET', `/v1/audit${query}`, { token })
      assert.equal(answer.status, 200, answer.text)
      return answer.body
    }
    const actionsOf = async (object: string) => (await list(`?object=${object}`)).data.map(({ action }) => action)

    test('the audit trail shows a service account’s whole life with actor, address and request, and never its key', async () => {
      const { service } = await started()
      const token = service.tokenFor({ sub: 'root', scopes: ['admin:*'] })
      const body = { name: 'Backend', scopes: ['read:users'] }
      const headers = { 'x-request-id': 'create-backend' }
      const created = await service.request<{ id: string; key: string }>('POST', '/v1/service-accounts', {
        token,
        body,
        headers,
      })
      const { id } = created.body
      const path = `/v1/service-accounts/${id}`
      const rotated = await service.request<{ key: string }>('POST', `${path}/rotate`, {
        token,
        body: { grace_seconds: 5 },
      })
      for (let i = 0; i < 2; i++) assert.equal((await service.request('DELETE', path, { token })).status, 204)
      const { data } = await list(`?object=${id}`)
      assert.deepEqual(
        data.map(({ action, after }) => [action, after]),
        [
          ['service_account.revoked', { name: 'Backend' }],
          ['service_account.rotated', { name: 'Backend', grace_seconds: 5 }],
          ['service_account.created', body],
        ],
        'the second revocation changed nothing and is not listed',
      )
      const first = data.at(-1)
      assert.deepEqual(first?.actor, { kind: 'user', id: 'root' })
      assert.deepEqual(first?.object, { kind: 'service_account', id })
      assert.equal(first?.request_id, 'create-backend')
      assert.match(String(first?.address), /127\.0\.0\.1/)
      assert.match(String(first?.id), /^aud_/)
      assert.equal(first?.at, new Date(service.clock.now()).toISOString())
      assert.deepEqual((await list(`?id=${first?.id}`)).data, [first])
      assert.deepEqual((await list('?request_id=create-backend')).data, [first])
      // An id that the service made has its time. The entries before it are not read.
      const [revoked] = data
      assert.match(String(revoked?.request_id), /^req_/)
      assert.deepEqual((await list(`?request_id=${revoked?.request_id}`)).data, [revoked])
      assert.deepEqual((await list(`?request_id=${revoked?.request_id}&object=svc_other`)).data, [])
      for (const { key } of [created.body, rotated.body]) assert.ok(!JSON.stringify(data).includes(key))
    })

    test('a repeat under an Idempotency-Key makes no second entry, and a refused change none', async () => {
      const { service } = await started()
      const token = service.tokenFor({ sub: 'once', scopes: ['admin:*'] })
      const request = {
        token,
        headers: { 'idempotency-key': 'audit-once' },
        body: { users: ['audited'], title: 'Hello', body: 'secret text' },
      }
      const sent = await service.request<{ id: string }>('POST', '/v1/notifications', request)
      await service.request('POST', '/v1/notifications', request)
      await service.request('POST', '/v1/service-accounts/svc_none/rotate', { token })
      await service.request('DELETE', '/v1/service-accounts/svc_none', { token })
      const { data } = await list('?actor=once')
      assert.deepEqual(
        data.map(({ action, object, after }) => [action, object.id, after]),
        [['notification.sent', sent.body.id, { users: 1, devices: 0, dry_run: false }]],
      )
    })

    test('a change of another user’s profile has before and after; one’s own is not listed', async () => {
      const { service } = await started()
      const own = service.tokenFor({ sub: 'eve', scopes: ['write:users'] })
      await service.request('PATCH', '/v1/users/me', { token: own, body: { locale: 'fr' } })
      await service.request('PATCH', '/v1/users/eve', { token: own, body: { locale: 'de' } })
      const clerk = service.tokenFor({ sub: 'clerk', scopes: ['write:users'] })
      const name = `eyJhbGciOi.${'x'.repeat(10)}.y ${'z'.repeat(190)}${'w'.repeat(10)}`.slice(0, 200)
      await service.request('PATCH', '/v1/users/eve', { token: clerk, body: { locale: 'it', display_name: name } })
      const stale = { token: clerk, body: { locale: 'en' }, headers: { 'if-match': '"1"' } }
      assert.equal((await service.request('PATCH', '/v1/users/eve', stale)).status, 412)
      const { data } = await list('?object=eve')
      assert.deepEqual(
        data.map(({ actor, action }) => [actor.id, action]),
        [['clerk', 'user.changed']],
      )
      assert.deepEqual(data[0]?.before, { locale: 'de', display_name: null })
      assert.equal(data[0]?.after?.locale, 'it')
      assert.match(String(data[0]?.after?.display_name), /^\[redacted\] z+/)
    })

    test('changes to the project of another caller have before and after, without its metadata; creators’ own are not listed', async () => {
      const { service } = await started()
      const own = { token: service.tokenFor({ sub: 'maker', scopes: ['write:projects'] }) }
      const admin = { token: service.tokenFor({ sub: 'project-admin', scopes: ['admin:*'] }) }
      const create = async (name: string) =>
        (await service.request<{ id: string }>('POST', '/v1/projects', { ...own, body: { name } })).body.id
      const path = (id: string) => `/v1/projects/${id}`

      const mine = await create('Mine')
      await service.request('PATCH', path(mine), { ...own, body: { name: 'Still mine' } })
      assert.equal((await service.request('DELETE', path(mine), own)).status, 204)
      assert.deepEqual(await actionsOf(mine), [])

      const id = await create('First')
      const changes = [{ name: 'Second', description: 'd'.repeat(2_000) }, { metadata: { secret: 'document' } }]
      for (const body of changes) {
        assert.equal((await service.request('PATCH', path(id), { ...admin, body })).status, 200)
      }
      const stale = { ...admin, headers: { 'if-match': '"1"' } }
      assert.equal((await service.request('PATCH', path(id), { ...stale, body: { name: 'Late' } })).status, 412)
      assert.equal((await service.request('DELETE', path(id), stale)).status, 412)
      const headers = { 'x-request-id': 'delete-project' }
      assert.equal((await service.request('DELETE', path(id), { ...admin, headers })).status, 204)
      assert.equal((await service.request('DELETE', path(id), admin)).status, 404)

      const { data } = await list(`?object=${id}`)
      assert.deepEqual(
        data.map(({ action, before, after }) => [action, before, after]),
        [
          ['project.deleted', { name: 'Second', created_by: 'maker' }, null],
          ['project.changed', { metadata: '2 bytes' }, { metadata: '21 bytes' }],
          [
            'project.changed',
            { name: 'First', description: null },
            { name: 'Second', description: `${'d'.repeat(200)}…` },
          ],
        ],
      )
      const [last] = data
      assert.deepEqual(last?.actor, { kind: 'user', id: 'project-admin' })
      assert.deepEqual(last?.object, { kind: 'project', id })
      assert.equal(last?.request_id, 'delete-project')
      assert.deepEqual(
        (await list('?action=project.changed&actor=project-admin')).data.map(({ object }) => object.id),
        [id, id],
      )
    })

    test('changes by an admin to the job of another owner are listed; changes by the owner are not', async () => {
      const world = await started()
      const admin = { token: world.admin }
      const mine = await world.start('pausing', { sub: 'owner' })
      await world.pass(RUN_MS)
      await world.request('POST', `/jobs/${mine.id}/cancel`, 'owner')
      await world.request('DELETE', `/jobs/${mine.id}`, 'owner')
      assert.deepEqual(await actionsOf(mine.id), [])

      const begun = await world.service.request<ShownJob>('POST', '/jobs', {
        ...admin,
        body: { type: 'asking', input: { secret: 'document' }, created_by: 'owner' },
      })
      const { id } = begun.body
      await world.quiet()
      await world.pass(RUN_MS)
      const resumed = await world.service.request('POST', `/jobs/${id}/resume`, {
        ...admin,
        body: { input: 'an answer' },
      })
      assert.equal(resumed.status, 202, resumed.text)
      await world.quiet()
      await world.pass(RUN_MS)
      for (let i = 0; i < 2; i++) await world.service.request('POST', `/jobs/${id}/cancel`, admin)
      await world.pass(RUN_MS)
      assert.equal((await world.service.request('DELETE', `/jobs/${id}`, admin)).status, 204)
      const { data } = await list(`?object=${id}`)
      assert.deepEqual(
        data.map(({ action, before, after }) => [action, before ?? after]),
        [
          ['job.deleted', null],
          ['job.cancelled', { status: 'awaiting_input' }],
          ['job.resumed', { run_seq: 2 }],
          ['job.started', { type: 'asking', created_by: 'owner' }],
        ],
      )
      assert.ok(!/document|an answer/.test(JSON.stringify(data)))
    })

    test('a replay of a callback is listed with its outcome', async () => {
      const world = await started()
      const job = await world.start('report')
      await world.pass(RUN_MS)
      const stored = await world.service.request<{ data: { id: string }[] }>('GET', `/v1/callbacks?job_id=${job.id}`, {
        token: world.admin,
      })
      const id = String(stored.body.data[0]?.id)
      await world.service.request('POST', `/v1/callbacks/${id}/replay`, { token: world.admin })
      const { data } = await list(`?object=${id}`)
      assert.deepEqual(
        data.map(({ action, object, after }) => [action, object.kind, after]),
        [['callback.replayed', 'callback', { outcome: 'duplicate', job_id: job.id }]],
      )
    })

    test('filters of the audit trail combine, pages follow each other, and a bad filter is named', async () => {
      const { service } = await started()
      const { ids } = service.services
      const { clock, db } = service
      const fromMs = clock.now() + 1_000
      await clock.advance(1_000)
      for (let i = 0; i < 5; i++) {
        await clock.advance(10)
        await db.transaction((tx) =>
          recordAudit(
            tx,
            { ids, clock },
            {
              by: {
                actor: { kind: 'command_line', id: i % 2 === 0 ? 'even' : 'odd' },
                address: 'box',
                requestId: null,
              },
              action: i < 4 ? 'job.checked' : 'job.deleted',
              object: { kind: 'job', id: `job_${i}` },
            },
          ),
        )
      }
      const objects = async (query: string) => (await list(query)).data.map(({ object }) => object.id)
      assert.deepEqual(await objects('?actor=even'), ['job_4', 'job_2', 'job_0'])
      assert.deepEqual(await objects('?actor=even&action=job.checked'), ['job_2', 'job_0'])
      assert.deepEqual(await objects('?actor=even&object=job_3'), [])
      const time = (ms: number) => new Date(ms).toISOString()
      assert.deepEqual(await objects(`?created_after=${time(fromMs + 20)}&created_before=${time(fromMs + 50)}`), [
        'job_3',
        'job_2',
      ])
      const seen: string[] = []
      let cursor: string | null = ''
      while (cursor !== null) {
        const page: Page = await list(`?actor=even&limit=1${cursor && `&cursor=${cursor}`}`)
        seen.push(...page.data.map(({ object }) => object.id))
        cursor = page.next_cursor
      }
      assert.deepEqual(seen, ['job_4', 'job_2', 'job_0'])
      const token = service.tokenFor({ scopes: ['admin:*'] })
      for (const query of ['action=nothing', 'created_after=yesterday', 'who=me', 'cursor=x', 'limit=0']) {
        const answer = await service.request('GET', `/v1/audit?${query}`, { token })
        const [name = ''] = query.split('=')
        assertError(service, answer, { status: 400, code: 'invalid_request', message: new RegExp(name) })
      }
    })

    test('a change that fails leaves no entry', async () => {
      const { service } = await started()
      const { ids } = service.services
      const { clock, db } = service
      const by = { actor: { kind: 'user', id: 'unlucky' }, address: null, requestId: null } as const
      const change = { by, action: 'user.changed', object: { kind: 'user', id: 'unknown-user' } } as const
      await assert.rejects(
        db.transaction(async (tx) => {
          await recordAudit(tx, { ids, clock }, change)
          throw new Error('the change fails')
        }),
        /the change fails/,
      )
      assert.deepEqual((await list('?actor=unlucky')).data, [])
    })

    test('audit entries older than AUDIT_RETENTION_DAYS are deleted by housekeeping, in bounded batches', async () => {
      const world = await startJobWorld(under, { runtime: false, env: { AUDIT_RETENTION_DAYS: '2' } })
      const { ids } = world.service.services
      const { clock, db } = world
      const record = (id: string) =>
        db.transaction((tx) =>
          recordAudit(
            tx,
            { ids, clock },
            {
              by: { actor: { kind: 'user', id: 'root' }, address: null, requestId: null },
              action: 'job.checked',
              object: { kind: 'job', id },
            },
          ),
        )
      const left = async () => {
        const rows = await db.query<{ id: string }>(sql`select object_id as id from audit order by id`)
        return rows.map(({ id }) => id)
      }
      for (const id of ['a', 'b', 'c']) await record(id)
      await clock.advance(1)
      assert.equal(await trimAudit(db, { beforeMs: clock.now(), limit: 1 }), true)
      assert.deepEqual(await left(), ['b', 'c'], 'the oldest first, no more than the limit')
      await world.leap(86_400_000)
      await record('d')
      await world.leap(86_400_000 + 1)
      // Each leap waits for the housekeeping that it begins: otherwise the clock could pass the two days of `d` meanwhile.
      await world.leapUntil(async () => (await left()).length <= 1, 10 * 60_000)
      assert.deepEqual(await left(), ['d'])
    })
  })
})
