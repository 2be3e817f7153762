import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { Project } from '../../src/projects/project-schema.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestRequest } from '../support/http-client.ts'
import { forEachService, type ServiceUnderTest, type TestService } from '../support/service.ts'

interface Page<Item> {
  data: Item[]
  has_more: boolean
  next_cursor: string | null
}

const ID = /^prj_[0-9a-hjkmnp-tv-z]{26}$/
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
const HARMLESS = [
  'Ünïcödé',
  '日本語のプロジェクト',
  'مشروع \u202Eعكسي\u202C',
  '👩‍👩‍👧‍👦 family, 🏳️‍🌈',
  'e\u0301 is not é',
  '\uFEFFbyte order mark',
  'tab\tline\nfeed\r\u0001\u001f\u007f',
  '\uFFFD\uFFFE\uFFFF',
  `quotes ' " \` \\ ; -- /* */ $1 ? %s \${x}`,
  '<script>alert(1)</script>',
  'null',
]
const UNSTORABLE = ['a\u0000b', '\u0000', '\ud800', 'a\udc00b', '\udc00\ud800']

const invalid = (message: string | RegExp) => ({ status: 400, code: 'invalid_request', message }) as const
const GONE = { status: 404, code: 'not_found', message: 'No such project' } as const
const CHANGED = { status: 412, code: 'precondition_failed' } as const

/** For tests whose requests wait for each other. */
async function startPatient({ engine, start }: ServiceUnderTest): Promise<TestService> {
  return start({ db: await engine.openDatabase({ waitsLong: true }) })
}

describe('projects', () => {
  forEachService((under) => {
    const caller = async (given?: TestService) => {
      const service = given ?? (await under.shared())
      const token = service.tokenFor({ sub: 'ada', scopes: ['read:projects', 'write:projects'] })
      const send = <Body = Project>(method: string, path: string, options: TestRequest = {}) =>
        service.request<Body>(method, path, { token, ...options })
      const create = async (fields: object = {}) => {
        const answer = await send('POST', '/v1/projects', { body: { name: 'A project', ...fields } })
        assert.equal(answer.status, 201, answer.text)
        return answer
      }
      return { service, token, send, create }
    }

    test('a project is created with what was given, and read back the same', async () => {
      const { service, create, send } = await caller()
      const fields = { name: 'Report', description: 'For the board', metadata: { team: 'x', n: [1, null, true] } }
      const created = await create(fields)
      const at = new Date(service.clock.now()).toISOString()
      assert.match(created.body.id, ID)
      assert.match(at, TIME)
      const expected = { id: created.body.id, ...fields, created_by: 'ada', created_at: at, updated_at: at }
      assert.deepEqual(created.body, expected)
      assert.equal(created.headers.location, `/v1/projects/${created.body.id}`)
      const read = await send('GET', String(created.headers.location))
      assert.equal(read.status, 200)
      assert.deepEqual(read.body, expected)
      assert.equal(read.headers.etag, created.headers.etag)
    })

    test('omitted fields of a project are null or empty', async () => {
      const { create } = await caller()
      const { body } = await create()
      assert.equal(body.description, null)
      assert.deepEqual(body.metadata, {})
      assert.deepEqual((await create({ description: null, metadata: {} })).body.metadata, {})
    })

    test('a service account is named as the creator by its id', async () => {
      const { service } = await caller()
      const admin = service.tokenFor({ scopes: ['admin:*'] })
      const body = { name: 'Backend', scopes: ['write:projects'] }
      const account = await service.request<{ id: string; key: string }>('POST', '/v1/service-accounts', {
        token: admin,
        body,
      })
      const { key, id } = account.body
      const created = await service.request<Project>('POST', '/v1/projects', { key, body: { name: 'x' } })
      assert.equal(created.body.created_by, id)
    })

    test('each fault of the body is named with its place', async () => {
      const { service, send, create } = await caller()
      const { id } = (await create()).body
      const faults: [body: object, message: string][] = [
        [{ name: '' }, 'body/name must not be empty'],
        [{ name: 'x'.repeat(201) }, 'body/name must be at most 200 characters long'],
        [{ name: 1 }, 'body/name must be string'],
        [{ name: null }, 'body/name must be string'],
        [{ name: ['x'] }, 'body/name must be string'],
        [{ name: 'x', description: 'x'.repeat(2001) }, 'body/description must be at most 2000 characters long'],
        [{ name: 'x', description: false }, 'body/description must be string,null'],
        [{ name: 'x', metadata: [] }, 'body/metadata must be object'],
        [{ name: 'x', metadata: null }, 'body/metadata must be object'],
        [{ name: 'x', metadata: 'x' }, 'body/metadata must be object'],
        [{ name: 'x', id: 'prj_mine' }, 'body must not have the field "id"'],
        [{ name: 'x', created_by: 'eve' }, 'body must not have the field "created_by"'],
        [{ name: 'x', nmae: 'y' }, 'body must not have the field "nmae"'],
      ]
      for (const [body, message] of faults) {
        assertError(service, await send('POST', '/v1/projects', { body }), invalid(message))
        assertError(service, await send('PATCH', `/v1/projects/${id}`, { body }), invalid(message))
      }
      assertError(service, await send('POST', '/v1/projects', { body: {} }), invalid('body must have the field "name"'))
      const empty = await send('PATCH', `/v1/projects/${id}`, { body: {} })
      assertError(service, empty, invalid('body must have at least one field'))
    })

    test('a PATCH takes application/json alone: a merge patch would mean something else', async () => {
      const { service, create, send } = await caller()
      const path = String((await create({ description: 'stays' })).headers.location)
      const patch = (type: string, raw = '{"description":null}') =>
        send('PATCH', path, { raw, headers: { 'content-type': type } })
      const patches = ['application/merge-patch+json', 'Application/Merge-Patch+JSON; charset=utf-8']
      for (const type of [...patches, 'application/json-patch+json', 'application/vnd.api+json']) {
        const answer = await patch(type)
        const message = 'Content-Type must be application/json'
        assertError(service, answer, { status: 415, code: 'unsupported_media_type', message })
        assert.equal(answer.headers['accept-patch'], 'application/json')
      }
      assert.equal((await send('GET', path)).body.description, 'stays')
      assert.equal((await patch('Application/JSON ; charset=utf-8')).body.description, null)
    })

    test('a read with the version the client has already is a 304 without a body', async () => {
      const { service, create, send } = await caller()
      const created = await create()
      const path = String(created.headers.location)
      const etag = String(created.headers.etag)
      const read = (method: string, tags: string) => send(method, path, { headers: { 'if-none-match': tags } })
      for (const tags of [etag, `W/${etag}`, `"x", ${etag}`, '*']) {
        for (const method of ['GET', 'HEAD']) {
          const { status, text, headers } = await read(method, tags)
          assert.deepEqual({ status, text, etag: headers.etag }, { status: 304, text: '', etag }, `${method} ${tags}`)
          assert.equal(headers['cache-control'], 'private, no-cache')
          assert.equal(headers['content-type'], undefined)
        }
      }
      for (const tags of ['"x"', '"0"', `"${etag.slice(1, -1)}0"`]) assert.equal((await read('GET', tags)).status, 200)
      assertError(service, await read('GET', 'x'), invalid(/^headers\/if-none-match must be/))
      await send('PATCH', path, { body: { name: 'Changed' } })
      const changed = await read('GET', etag)
      assert.equal(changed.status, 200)
      assert.equal(changed.body.name, 'Changed')
      const { id } = created.body
      await send('DELETE', path)
      assertError(service, await read('GET', `"2", ${etag}`), GONE)
      assertError(service, await send('GET', `/v1/projects/${id}`, { headers: { 'if-none-match': '*' } }), GONE)
    })

    test('lengths count characters, not code units', async () => {
      const { create } = await caller()
      const name = '🧮'.repeat(200)
      assert.equal((await create({ name, description: '🧮'.repeat(2000) })).body.name, name)
    })

    test('every harmless text comes back as it went in', async () => {
      const { create, send } = await caller()
      for (const text of HARMLESS) {
        const metadata = { [text]: text }
        const created = await create({ name: text, description: text, metadata })
        const read = await send('GET', String(created.headers.location))
        for (const { body } of [created, read]) {
          assert.equal(body.name, text)
          assert.equal(body.description, text)
          assert.deepEqual(body.metadata, metadata)
        }
      }
    })

    test('text that not every engine can hold is refused wherever it stands', async () => {
      const { service, send, create } = await caller()
      const { id } = (await create()).body
      const message = 'must not contain NUL or unpaired surrogates'
      for (const text of UNSTORABLE) {
        for (const field of ['name', 'description']) {
          const body = { name: 'x', [field]: text }
          assertError(service, await send('POST', '/v1/projects', { body }), invalid(`body/${field} ${message}`))
          assertError(service, await send('PATCH', `/v1/projects/${id}`, { body }), invalid(`body/${field} ${message}`))
        }
      }
      for (const method of ['GET', 'PATCH', 'DELETE']) {
        const body = method === 'PATCH' ? { name: 'x' } : undefined
        const answer = await send(method, '/v1/projects/prj_%00', { body })
        assertError(service, answer, invalid(`params/id ${message}`))
      }
    })

    test('metadata keeps intact even text that not every engine can hold', async () => {
      const { create, send } = await caller()
      for (const text of UNSTORABLE) {
        const metadata = { [text]: text, list: [text, { [text]: [text] }] }
        const created = await create({ metadata })
        assert.deepEqual(created.body.metadata, metadata)
        const path = String(created.headers.location)
        assert.deepEqual((await send('GET', path)).body.metadata, metadata)
        const changed = await send('PATCH', path, { body: { metadata: { only: text } } })
        assert.deepEqual(changed.body.metadata, { only: text })
        const { data } = (await send<Page<Project>>('GET', '/v1/projects?limit=1')).body
        assert.deepEqual(data[0]?.metadata, { only: text })
      }
    })

    test('metadata keeps odd keys and numbers as JSON gives them', async () => {
      const { service, token, create } = await caller()
      const metadata = {
        '': 0,
        toJSON: 1,
        constructor: 'x',
        hasOwnProperty: 1,
        length: 3,
        '"\\\n': [],
        big: 9007199254740991,
        small: -1.5e-300,
        deep: { a: [[[{}]]] },
      }
      assert.deepEqual((await create({ metadata })).body.metadata, metadata)
      const raw = '{"name":"x","metadata":{ "n" : 1e999 }}'
      const headers = { 'content-type': 'application/json' }
      const exact = await service.request('POST', '/v1/projects', { token, raw, headers })
      assert.ok(exact.text.includes('"metadata":{ "n" : 1e999 },'), exact.text)
    })

    test('metadata may be 16 KB of JSON and not a byte more', async () => {
      const { service, send, create } = await caller()
      const ofBytes = (bytes: number) => ({ a: 'é'.repeat((bytes - 8) / 2) })
      const limit = 16 * 1024
      assert.equal(Buffer.byteLength(JSON.stringify(ofBytes(limit))), limit)
      const path = String((await create({ metadata: ofBytes(limit) })).headers.location)
      const tooLarge = invalid('body/metadata must not be larger than 16 KB')
      const body = { name: 'x', metadata: ofBytes(limit + 2) }
      assertError(service, await send('POST', '/v1/projects', { body }), tooLarge)
      assertError(service, await send('PATCH', path, { body: { metadata: body.metadata } }), tooLarge)
    })

    test('PATCH changes the fields given and no other, and null empties a description', async () => {
      const { service, create, send } = await caller()
      const created = await create({ description: 'Old', metadata: { a: 1, b: 2 } })
      const path = String(created.headers.location)
      await service.clock.leap(1_000)
      const updated_at = new Date(service.clock.now()).toISOString()
      const renamed = await send('PATCH', path, { body: { name: 'New' } })
      assert.deepEqual(renamed.body, { ...created.body, name: 'New', updated_at })
      assert.notEqual(renamed.headers.etag, created.headers.etag)
      const replaced = await send('PATCH', path, { body: { metadata: { b: 3 }, description: null } })
      assert.deepEqual(replaced.body.metadata, { b: 3 }, 'metadata is replaced, not merged')
      assert.equal(replaced.body.description, null)
      assert.equal(replaced.body.created_at, created.body.created_at)
      assert.deepEqual((await send('GET', path)).body, replaced.body)
    })

    test('If-Match lets only the version it names be changed', async () => {
      const { service, create, send } = await caller()
      const created = await create()
      const path = String(created.headers.location)
      const first = String(created.headers.etag)
      assert.match(first, /^"[^"]+"$/, 'a strong tag')
      const patch = (ifMatch: string) => send('PATCH', path, { body: { name: 'x' }, headers: { 'if-match': ifMatch } })
      const second = String((await patch(first)).headers.etag)
      assert.notEqual(second, first)
      for (const stale of [first, `W/${second}`, '"nonsense"', '""', `"${'9'.repeat(30)}"`, `${first}, "x"`, '"02"']) {
        assertError(service, await patch(stale), CHANGED)
      }
      const third = String((await patch(`"x", ${second}`)).headers.etag)
      const fourth = await patch(`"x" , ${third},"y"`)
      assert.equal(fourth.status, 200, 'blanks in the list do not matter')
      assert.equal((await patch('*')).status, 200)
      assert.equal((await patch(' * ')).status, 200)
      for (const malformed of ['', '3', 'W/3', '"3', '3"', '"a" "b"', 'w/"3"', '*, "3"', "'3'"]) {
        assertError(service, await patch(malformed), invalid(/^headers\/if-match must be/))
      }
      const current = (await send('GET', path)).headers.etag
      assertError(service, await send('DELETE', path, { headers: { 'if-match': first } }), CHANGED)
      assert.equal((await send('DELETE', path, { headers: { 'if-match': String(current) } })).status, 204)
      assertError(service, await patch('*'), GONE)
      assertError(service, await patch(first), GONE)
    })

    test('exactly one of twenty changes to one version wins', async () => {
      const { service, create, send } = await caller(await startPatient(under))
      const created = await create()
      const path = String(created.headers.location)
      const headers = { 'if-match': String(created.headers.etag) }
      const race = await Promise.all(
        Array.from({ length: 20 }, (_, n) => send('PATCH', path, { body: { name: `Racer ${n}` }, headers })),
      )
      const [winner, ...others] = race.toSorted((a, b) => a.status - b.status)
      assert.equal(winner?.status, 200)
      for (const loser of others) assertError(service, loser, CHANGED)
      assert.deepEqual((await send('GET', path)).body, winner?.body)
    })

    test('no change without If-Match is lost among twenty at once', async () => {
      const { create, send } = await caller(await startPatient(under))
      const path = String((await create()).headers.location)
      const fields = Array.from({ length: 20 }, (_, n) => (n % 2 ? { name: `n${n}` } : { description: `d${n}` }))
      const race = await Promise.all(fields.map((body) => send('PATCH', path, { body })))
      assert.ok(race.every(({ status }) => status === 200))
      assert.equal(new Set(race.map(({ headers }) => headers.etag)).size, 20, 'each made a version of its own')
      const { body } = await send('GET', path)
      assert.match(body.name, /^n\d+$/)
      assert.match(String(body.description), /^d\d+$/)
    })

    test('DELETE removes a project for good', async () => {
      const { service, create, send } = await caller()
      const path = String((await create()).headers.location)
      const gone = await send<string>('DELETE', path)
      assert.equal(gone.status, 204)
      assert.equal(gone.text, '')
      assertError(service, await send('GET', path), GONE)
      assertError(service, await send('DELETE', path), GONE)
      assertError(service, await send('PATCH', path, { body: { name: 'x' } }), GONE)
    })

    test('exactly one of twenty deletions of one project succeeds', async () => {
      const { create, send } = await caller(await startPatient(under))
      const path = String((await create()).headers.location)
      const race = await Promise.all(Array.from({ length: 20 }, () => send('DELETE', path)))
      assert.deepEqual(race.map(({ status }) => status).sort(), [204, ...Array.from({ length: 19 }, () => 404)])
    })

    test('an unknown id, or one that cannot exist, is not found', async () => {
      const { service, send } = await caller()
      const ids = [
        'prj_01kq3v7m2x8n4r6t0w9y5z1abc',
        'x',
        '%F0%9F%A7%AE',
        "'%20or%201=1",
        '..%2F..%2Fetc',
        'x'.repeat(255),
      ]
      for (const id of ids) assertError(service, await send('GET', `/v1/projects/${id}`), GONE)
      const tooLong = await send('GET', `/v1/projects/${'x'.repeat(256)}`)
      assertError(service, tooLong, invalid('params/id must be at most 255 characters long'))
    })

    test('an unknown query parameter is refused where a list is asked for', async () => {
      const { service, send } = await caller()
      const answer = await send('GET', '/v1/projects?limt=5')
      assertError(service, answer, invalid('querystring must not have the field "limt"'))
    })
  })
})

describe('the list of projects', () => {
  forEachService((under) => {
    const lister = async (given?: TestService) => {
      const service = given ?? (await under.shared())
      const token = service.tokenFor({ scopes: ['read:projects', 'write:projects'] })
      const list = (query = '') => service.request<Page<Project>>('GET', `/v1/projects${query}`, { token })
      const create = async (name: string) => {
        const created = await service.request<Project>('POST', '/v1/projects', { token, body: { name } })
        return created.body.id
      }
      return { service, token, list, create }
    }

    test('the list of projects is empty before there is any project', async () => {
      const { list } = await lister()
      assert.deepEqual((await list()).body, { data: [], has_more: false, next_cursor: null })
    })

    test('the list of projects is newest first, by default twenty to a page', async () => {
      const { service, list, create } = await lister()
      const ids: string[] = []
      for (let n = 0; n < 25; n++) {
        ids.unshift(await create(`Project ${n}`))
        if (n % 3 === 0) await service.clock.leap(1)
      }
      const first = (await list()).body
      assert.deepEqual(
        first.data.map(({ id }) => id),
        ids.slice(0, 20),
      )
      assert.equal(first.has_more, true)
      const second = (await list(`?cursor=${first.next_cursor}`)).body
      assert.deepEqual(
        second.data.map(({ id }) => id),
        ids.slice(20),
      )
      assert.equal(second.has_more, false)
      assert.equal(second.next_cursor, null)
      assert.equal((await list('?limit=25')).body.has_more, false, 'a page that ends where the list ends')
      assert.equal((await list('?limit=24')).body.has_more, true)
      assert.equal((await list('?limit=100')).body.data.length, 25)
      assert.equal((await list('?limit=1')).body.data.length, 1)
    })

    test('the list of projects, read page by page while others insert and delete, repeats nothing and leaves nothing out', async () => {
      const { service, token, list, create } = await lister()
      for (let n = 0; n < 12; n++) await create(`Before ${n}`)
      const before = (await list('?limit=100')).body.data.map(({ id }) => id)
      const seen: string[] = []
      let cursor: string | null = null
      do {
        const page: Page<Project> = (await list(`?limit=5${cursor ? `&cursor=${cursor}` : ''}`)).body
        seen.push(...page.data.map(({ id }) => id))
        cursor = page.next_cursor
        // New ones belong before the first page; the last item of the page just read is where the next one starts.
        await Promise.all([create('Meanwhile'), create('Meanwhile')])
        const last = page.data.at(-1)
        if (last) await service.request('DELETE', `/v1/projects/${last.id}`, { token })
      } while (cursor !== null)
      assert.deepEqual(seen, before)
    })

    test('the list of projects never skips a project when many are created at once', async () => {
      const { list, create } = await lister(await startPatient(under))
      const created = await Promise.all(Array.from({ length: 40 }, (_, n) => create(`Concurrent ${n}`)))
      const seen: string[] = []
      let query = '?limit=7'
      for (;;) {
        const page: Page<Project> = (await list(query)).body
        seen.push(...page.data.map(({ id }) => id))
        if (page.next_cursor === null) break
        query = `?limit=7&cursor=${page.next_cursor}`
      }
      assert.equal(new Set(seen).size, seen.length)
      assert.deepEqual(seen, seen.toSorted().reverse())
      for (const id of created) assert.ok(seen.includes(id))
    })

    test('an invalid limit of a list is refused', async () => {
      const { service, list } = await lister()
      const faults = {
        '0': 'must be >= 1',
        '101': 'must be <= 100',
        '-1': 'must be >= 1',
        abc: 'must be integer',
        '1.5': 'must be integer',
        '': 'must be integer',
        '1e1000': 'must be integer',
        '-1e1000': 'must be integer',
        '0x10': 'must be integer',
        '0b1': 'must be integer',
        '1e1': 'must be integer',
        '5.0': 'must be integer',
        '+5': 'must be integer',
        ' 5': 'must be integer',
        '5 ': 'must be integer',
        '5\n': 'must be integer',
        '٣': 'must be integer',
        '1_0': 'must be integer',
        ['9'.repeat(400)]: 'must be integer',
        '99999999999999999999': 'must be <= 100',
      }
      for (const [limit, fault] of Object.entries(faults)) {
        const answer = await list(`?limit=${encodeURIComponent(limit)}`)
        assertError(service, answer, invalid(`querystring/limit ${fault}`))
      }
      assertError(service, await list('?limit=1&limit=2'), invalid(/^querystring\/limit must be/))
    })

    test('a cursor that the list did not give is refused', async () => {
      const { service, list } = await lister()
      const mine = String((await list('?limit=1')).body.next_cursor)
      const users = await foreignCursor(service)
      const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
      const id = JSON.parse(Buffer.from(mine, 'base64url').toString())[1]
      const made = [
        users,
        '',
        'x',
        'null',
        `${mine}=`,
        `${mine}A`,
        ` ${mine}`,
        mine.slice(0, -1),
        Buffer.from(mine, 'base64url').toString('hex'),
        Buffer.from(` ${JSON.stringify(['projects', id])}`).toString('base64url'),
        encode(null),
        encode({}),
        encode('projects'),
        encode(['projects']),
        encode(['projects', 1]),
        encode(['projects', null]),
        encode(['projects', id, id]),
        encode(['users', id]),
        encode(['projects', '\u0000']),
        encode(['projects', 'a\ud800']),
        '\ud83e\uddee',
        '\u0000',
      ]
      for (const cursor of made) {
        const answer = await list(`?cursor=${encodeURIComponent(cursor)}`)
        assertError(service, answer, invalid('querystring/cursor is not a cursor of this list'))
      }
      const long = await list(`?cursor=${'x'.repeat(1025)}`)
      assertError(service, long, invalid('querystring/cursor must be at most 1024 characters long'))
      assertError(service, await list(`?cursor=${mine}&cursor=${mine}`), invalid(/^querystring\/cursor must be string/))
      assert.equal((await list(`?cursor=${mine}`)).status, 200)
    })

    test('the list of projects gives the same page to both variants and after any limit', async () => {
      const { service, token, list } = await lister()
      const { next_cursor } = (await list('?limit=3')).body
      const other = await under.start({ db: service.db, env: { API_VARIANT: under.variant === 'A' ? 'B' : 'A' } })
      const query = `/v1/projects?limit=4&cursor=${next_cursor}`
      const elsewhere = await other.request<Page<Project>>('GET', query, { token })
      assert.deepEqual(elsewhere.body, (await list(`?limit=4&cursor=${next_cursor}`)).body)
    })

    test('a page of projects ends at 2 MB, and the next one goes on there', async () => {
      const { service, list } = await lister()
      await service.db.query(sql`delete from projects`)
      const metadata = JSON.stringify({ text: 'x'.repeat(16_300) })
      const description = '界'.repeat(2_000)
      const all = Array.from({ length: 110 }, (_, n) => `prj_${1_000 + n}`)
      for (const id of all) {
        await service.db.query(sql`
          insert into projects (id, name, description, metadata, created_by, version, created_at, updated_at)
          values (${id}, 'Large', ${description}, ${metadata}, 'user', 1, 1, 1)`)
      }
      const first = (await list('?limit=100')).body
      assert.equal(first.has_more, true)
      assert.ok(first.data.length < 100)
      const bytes = (projects: Project[]) => Buffer.byteLength(JSON.stringify(projects))
      assert.ok(bytes(first.data) < 2.1 * 1024 * 1024, `${bytes(first.data)} bytes`)
      const second = (await list(`?limit=100&cursor=${first.next_cursor}`)).body
      assert.equal(second.has_more, false)
      assert.deepEqual(
        [...first.data, ...second.data].map(({ id }) => id),
        all.toReversed(),
      )
    })
  })
})

/** A cursor of the list of users. */
async function foreignCursor(service: TestService): Promise<string> {
  for (const sub of ['one', 'two']) await service.request('GET', '/v1/users/me', { token: service.tokenFor({ sub }) })
  const token = service.tokenFor({ scopes: ['read:users'] })
  const page = await service.request<Page<unknown>>('GET', '/v1/users?limit=1', { token })
  return String(page.body.next_cursor)
}
