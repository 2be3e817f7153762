import assert from 'node:assert/strict'
import { hash } from 'node:crypto'
import { describe, test } from 'node:test'
import { buildNextIndex } from '../../src/db/build-indexes.ts'
import type { MintRequest } from '../../src/sandbox/identity-provider/token-mint.ts'
import type { User } from '../../src/users/user-schema.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestRequest } from '../support/http-client.ts'
import { HTTPS_URLS, NOT_HTTPS_URLS } from '../support/https-urls.ts'
import { forEachService, type TestService } from '../support/service.ts'

interface Page {
  data: User[]
  has_more: boolean
  next_cursor: string | null
}

const MINUTE_MS = 60_000
const ME = '/v1/users/me'
const WRITES = /insert into users|update users/

const invalid = (message: string | RegExp) => ({ status: 400, code: 'invalid_request', message }) as const
const FORBIDDEN = { status: 403, code: 'forbidden', message: 'Insufficient scope' } as const
const GONE = { status: 404, code: 'not_found', message: 'No such user' } as const
const CHANGED = { status: 412, code: 'precondition_failed' } as const

/** Requests in one user's name. */
function as(service: TestService, who: MintRequest) {
  const token = service.tokenFor(who)
  return <Body = User>(method: string, path: string, options: TestRequest = {}) =>
    service.request<Body>(method, path, { token, ...options })
}

/** Text of three bytes a character that PostgreSQL cannot compress, so that it takes its whole length in an index. */
function incompressible(length: number): string {
  const codes = Array.from(
    { length },
    (_, n) => 0x4e00 + (hash('sha256', `${length} ${n}`, 'buffer').readUInt16BE() % 20_000),
  )
  return String.fromCodePoint(...codes)
}

const pathOf = (sub: string) => `/v1/users/${encodeURIComponent(sub)}`

describe('users', () => {
  forEachService((under) => {
    test('a profile is created on the first request of any kind', async () => {
      const service = await under.shared()
      const at = new Date(service.clock.now()).toISOString()
      const first = as(service, { sub: 'first', email: 'first@example.com', scopes: ['read:projects'] })
      assert.equal((await first('GET', '/v1/projects')).status, 200)
      const reader = as(service, { sub: 'reader', scopes: ['read:users'] })
      const { body } = await reader('GET', pathOf('first'))
      assert.deepEqual(body, {
        sub: 'first',
        email: 'first@example.com',
        display_name: null,
        avatar_url: null,
        locale: null,
        time_zone: null,
        push_enabled: true,
        created_at: at,
        updated_at: at,
        last_seen_at: at,
        blocked_at: null,
      })
      assert.equal((await reader('GET', ME)).body.email, null, 'a token may name no email')
    })

    test('a service account gets no profile and has none to show', async () => {
      const service = await under.shared()
      const admin = as(service, { sub: 'admin', scopes: ['admin:*'] })
      const body = { name: 'Backend', scopes: ['read:users', 'write:users'] }
      const { id, key } = (await admin<{ id: string; key: string }>('POST', '/v1/service-accounts', { body })).body
      const message = 'A service account has no user profile'
      for (const [method, change] of [
        ['GET', undefined],
        ['PATCH', { locale: 'de' }],
      ] as const) {
        const answer = await service.request(method, ME, { key, body: change })
        assertError(service, answer, { status: 404, code: 'not_found', message })
      }
      assertError(service, await service.request('GET', pathOf(id), { key }), GONE)
    })

    test('a caller’s own profile needs no scope, another’s does, and no user has the name me', async () => {
      const service = await under.shared()
      const ada = as(service, { sub: 'ada' })
      const eve = as(service, { sub: 'eve', scopes: ['read:projects', 'write:projects'] })
      const reader = as(service, { sub: 'clerk', scopes: ['read:users'] })
      const writer = as(service, { sub: 'clerk', scopes: ['write:users'] })
      assert.equal((await ada('GET', ME)).body.sub, 'ada')
      assert.equal((await ada('PATCH', ME, { body: { display_name: 'Ada' } })).body.display_name, 'Ada')
      assertError(service, await ada('GET', pathOf('ada')), FORBIDDEN)
      assertError(service, await eve('GET', pathOf('ada')), FORBIDDEN)
      assertError(service, await eve('PATCH', pathOf('ada'), { body: { display_name: 'Eve' } }), FORBIDDEN)
      assertError(service, await eve('GET', '/v1/users'), FORBIDDEN)
      assertError(service, await reader('PATCH', pathOf('ada'), { body: { display_name: 'x' } }), FORBIDDEN)
      assertError(service, await writer('GET', pathOf('ada')), FORBIDDEN)
      assert.equal((await reader('GET', pathOf('ada'))).body.display_name, 'Ada')
      assert.equal((await writer('PATCH', pathOf('ada'), { body: { locale: 'de' } })).body.sub, 'ada')
      assert.equal((await reader('GET', ME)).body.sub, 'clerk')
    })

    test('every field may be changed, and emptied again', async () => {
      const service = await under.shared()
      const send = as(service, { sub: 'changing', email: 'c@example.com' })
      const before = await send('GET', ME)
      await service.clock.leap(1_000)
      const updated_at = new Date(service.clock.now()).toISOString()
      const fields = {
        display_name: 'مرحبا 👩‍🚀 e\u0301',
        avatar_url: 'https://example.com/a.png?x=1#y',
        locale: 'zh-Hant-TW',
        time_zone: 'America/Argentina/Buenos_Aires',
        push_enabled: false,
      }
      const changed = await send('PATCH', ME, { body: fields })
      assert.equal(changed.status, 200, changed.text)
      assert.deepEqual(changed.body, { ...before.body, ...fields, updated_at })
      assert.notEqual(changed.headers.etag, before.headers.etag)
      assert.deepEqual((await send('GET', ME)).body, changed.body)
      const single = await send('PATCH', ME, { body: { push_enabled: true } })
      assert.deepEqual(single.body, { ...changed.body, push_enabled: true })
      const nulls = { display_name: null, avatar_url: null, locale: null, time_zone: null }
      const emptied = await send('PATCH', ME, { body: nulls })
      assert.deepEqual(emptied.body, { ...single.body, ...nulls })
    })

    test('each fault of the body is named with its place', async () => {
      const service = await under.shared()
      const send = as(service, { sub: 'faulty', scopes: ['admin:*'] })
      const faults: [body: object, message: string][] = [
        [{}, 'body must have at least one field'],
        [{ display_name: 'x'.repeat(201) }, 'body/display_name must be at most 200 characters long'],
        [{ display_name: 1 }, 'body/display_name must be string,null'],
        [{ avatar_url: 'http://example.com/a.png' }, 'body/avatar_url must be an https URL'],
        [{ avatar_url: 'javascript:alert(1)' }, 'body/avatar_url must be an https URL'],
        [{ avatar_url: 'a.png' }, 'body/avatar_url must be an https URL'],
        [{ avatar_url: '' }, 'body/avatar_url must be an https URL'],
        [{ avatar_url: `https://x/${'x'.repeat(2000)}` }, 'body/avatar_url must be at most 2000 characters long'],
        [{ locale: 'not a locale' }, 'body/locale must be a BCP 47 language tag, such as en-GB'],
        [{ locale: '' }, 'body/locale must be a BCP 47 language tag, such as en-GB'],
        [{ time_zone: 'Mars/Olympus' }, 'body/time_zone must be an IANA time zone, such as Europe/Berlin'],
        [{ time_zone: '+01:00' }, 'body/time_zone must be an IANA time zone, such as Europe/Berlin'],
        [{ time_zone: '-0100' }, 'body/time_zone must be an IANA time zone, such as Europe/Berlin'],
        [{ time_zone: '' }, 'body/time_zone must be an IANA time zone, such as Europe/Berlin'],
        [{ push_enabled: 'false' }, 'body/push_enabled must be boolean'],
        [{ push_enabled: null }, 'body/push_enabled must be boolean'],
        [{ push_enabled: 0 }, 'body/push_enabled must be boolean'],
        [{ sub: 'x' }, 'body must not have the field "sub"'],
        [{ email: 'x@example.com' }, 'body must not have the field "email"'],
      ]
      for (const [body, message] of faults) {
        assertError(service, await send('PATCH', ME, { body }), invalid(message))
        assertError(service, await send('PATCH', pathOf('faulty'), { body }), invalid(message))
      }
    })

    test('an avatar is an https URL to the letter, or it is refused', async () => {
      const service = await under.shared()
      const send = as(service, { sub: 'portrait' })
      for (const avatar_url of NOT_HTTPS_URLS) {
        const answer = await send('PATCH', ME, { body: { avatar_url } })
        assertError(service, answer, invalid('body/avatar_url must be an https URL'))
      }
      for (const avatar_url of HTTPS_URLS) {
        assert.equal((await send('PATCH', ME, { body: { avatar_url } })).status, 200, avatar_url)
        assert.equal((await send<{ avatar_url: string }>('GET', ME)).body.avatar_url, avatar_url)
      }
    })

    test('text that not every engine can hold is refused wherever it stands', async () => {
      const service = await under.shared()
      const send = as(service, { sub: 'poison', scopes: ['admin:*'] })
      const texts = { nul: 'a\u0000b', high: 'a\ud800', low: '\udc00b' }
      for (const text of Object.values(texts)) {
        const bodies = {
          display_name: text,
          avatar_url: `https://example.com/${text}`,
          locale: `en-${text}`,
          time_zone: `Europe/${text}`,
        }
        for (const [field, value] of Object.entries(bodies)) {
          const answer = await send('PATCH', ME, { body: { [field]: value } })
          assertError(service, answer, invalid(new RegExp(`^body/${field} must`)))
        }
      }
      const message = 'params/sub must not contain NUL or unpaired surrogates'
      assertError(service, await send('GET', '/v1/users/a%00b'), invalid(message))
      assertError(service, await send('PATCH', '/v1/users/a%00b', { body: { locale: 'de' } }), invalid(message))
      const { body } = await send('GET', ME)
      assert.equal(body.display_name, null, 'nothing of it was kept')
    })

    test('a profile can be read by any sub that a token may carry', async () => {
      const service = await under.shared()
      const reader = as(service, { sub: 'reader', scopes: ['read:users', 'write:users'] })
      const subs = [
        's'.repeat(255),
        '🧮'.repeat(127),
        'a/b',
        'a%2Fb',
        'a?b#c',
        'a b',
        '..',
        'Ünï',
        "o'brien",
        '日本',
        'ME',
      ]
      for (const sub of subs) {
        assert.equal((await as(service, { sub })('GET', ME)).body.sub, sub)
        assert.equal((await reader('GET', pathOf(sub))).body.sub, sub)
        assert.equal((await reader('PATCH', pathOf(sub), { body: { locale: 'de' } })).body.locale, 'de')
      }
    })

    test('an unknown user is not found', async () => {
      const service = await under.shared()
      const send = as(service, { sub: 'reader', scopes: ['admin:*'] })
      assertError(service, await send('GET', pathOf('unknown-user')), GONE)
      assertError(service, await send('PATCH', pathOf('unknown-user'), { body: { locale: 'de' } }), GONE)
      const headers = { 'if-match': '"1"' }
      assertError(service, await send('PATCH', pathOf('unknown-user'), { body: { locale: 'de' }, headers }), GONE)
    })

    test('If-Match guards a profile, and of twenty changes to one version exactly one wins', async () => {
      const service = await under.start({ db: await under.engine.openDatabase({ waitsLong: true }) })
      const send = as(service, { sub: 'racing' })
      const etag = String((await send('GET', ME)).headers.etag)
      const headers = { 'if-match': etag }
      const race = await Promise.all(
        Array.from({ length: 20 }, (_, n) => send('PATCH', ME, { body: { display_name: `Racer ${n}` }, headers })),
      )
      const [winner, ...others] = race.toSorted((a, b) => a.status - b.status)
      assert.equal(winner?.status, 200)
      for (const loser of others) assertError(service, loser, CHANGED)
      assert.equal((await send('GET', ME)).headers.etag, winner?.headers.etag)
      const patch = (ifMatch: string) => send('PATCH', ME, { body: { locale: 'de' }, headers: { 'if-match': ifMatch } })
      assertError(service, await patch(`W/${winner?.headers.etag}`), CHANGED)
      assertError(service, await patch('3'), invalid(/^headers\/if-match must be/))
      assert.equal((await patch(`${etag}, ${winner?.headers.etag}`)).status, 200)
      assert.equal((await patch('*')).status, 200)
    })

    const watched = async () => {
      const [database, service] = await Promise.all([under.watched(), under.shared()])
      // Write the pending updates of earlier tests first.
      await service.clock.leap(MINUTE_MS)
      await database.idle()
      database.forget()
      return { database, service }
    }

    test('a request costs no write after the first, and twenty first ones at once cost one', async () => {
      const { database, service } = await watched()
      const token = service.tokenFor({ sub: 'busy', email: 'busy@example.com' })
      const send = () => service.request('GET', ME, { token })
      const answers = await Promise.all(Array.from({ length: 20 }, send))
      assert.ok(answers.every(({ status }) => status === 200))
      assert.equal(database.count(WRITES), 1)
      for (let n = 0; n < 20; n++) await send()
      await service.clock.leap(4 * MINUTE_MS)
      await send()
      await database.idle()
      assert.equal(database.count(WRITES), 1)
    })

    test('the email is that of the newest token, and a token without an email keeps the stored one', async () => {
      const { database, service } = await watched()
      const seen = async (email: string | null) =>
        (await service.request<User>('GET', ME, { token: service.tokenFor({ sub: 'mover', email }) })).body.email
      assert.equal(await seen('old@example.com'), 'old@example.com')
      assert.equal(await seen('new@example.com'), 'new@example.com')
      assert.equal(await seen(null), 'new@example.com')
      assert.equal(await seen('new@example.com'), 'new@example.com')
      assert.equal(await seen('пошта@приклад.укр'), 'пошта@приклад.укр')
      assert.equal(database.count(WRITES), 3, 'one for each email')
    })

    test('an email that is too long to be an address is ignored, and the longest possible one is stored', async () => {
      const service = await under.start()
      while ((await buildNextIndex(service.db)) !== 'done');
      const seen = async (sub: string, email: string) => {
        const answer = await service.request<User>('GET', ME, { token: service.tokenFor({ sub, email }) })
        assert.equal(answer.status, 200, answer.text)
        return answer.body.email
      }
      assert.equal(await seen('ada', incompressible(1_500)), null)
      assert.equal(await seen('ada', 'ada@example.com'), 'ada@example.com')
      assert.equal(await seen('ada', incompressible(321)), 'ada@example.com', 'it removes nothing')
      const longest = incompressible(320)
      assert.equal(await seen(incompressible(255), longest), longest)
      const token = service.tokenFor({ sub: 'reader', scopes: ['read:users'] })
      const path = `/v1/users?search=${encodeURIComponent(longest.slice(0, 10))}`
      const found = await service.request<{ data: User[] }>('GET', path, { token })
      assert.deepEqual(
        found.body.data.map(({ email }) => email),
        [longest],
      )
    })

    test('last_seen_at follows within minutes, in few writes, and is no change of the profile', async () => {
      const { database, service } = await watched()
      const { clock } = service
      const users = ['a', 'b', 'c'].map((sub) => as(service, { sub, expiresInSeconds: 86_400 }))
      const [first] = await Promise.all(users.map((send) => send('GET', ME)))
      database.forget()
      await clock.leap(5 * MINUTE_MS)
      for (const send of users) for (let n = 0; n < 3; n++) await send('GET', ME)
      await database.idle()
      await clock.leap(MINUTE_MS)
      await database.idle()
      assert.equal(database.count(WRITES), 1, 'one write for all of them')
      const later = await users[0]?.('GET', ME)
      assert.ok(first && later)
      const agoMs = clock.now() - Date.parse(later.body.last_seen_at)
      assert.ok(agoMs <= 5 * MINUTE_MS, `${agoMs} ms ago`)
      assert.deepEqual({ ...later.body, last_seen_at: '' }, { ...first.body, last_seen_at: '' })
      assert.equal(later.headers.etag, first.headers.etag)
    })

    test('the last last_seen_at is written before the service stops', async () => {
      const shared = await under.shared()
      const service = await under.start({ db: shared.db })
      const send = as(service, { sub: 'late', expiresInSeconds: 86_400 })
      await send('GET', ME)
      await service.clock.leap(6 * MINUTE_MS)
      await send('GET', ME)
      await service.close()
      const { body } = await as(shared, { sub: 'clerk', scopes: ['read:users'] })('GET', pathOf('late'))
      assert.equal(Date.parse(body.last_seen_at), service.clock.now())
    })

    test('the list is newest first, in pages that hold while others arrive', async () => {
      const service = await under.shared()
      await service.clock.leap(1)
      const list = async (query = '') =>
        as(service, { sub: 'clerk', scopes: ['read:users'] })<Page>('GET', `/v1/users${query}`)
      const arrive = (sub: string) => as(service, { sub })('GET', ME)
      await list()
      for (let n = 0; n < 12; n++) {
        await arrive(`user ${n % 2 ? 'a' : 'Z'}${n}`)
        // Some are made in the same millisecond: then the name decides.
        if (n % 4 === 0) await service.clock.leap(1)
      }
      const before = (await list('?limit=100')).body.data
      assert.ok(before.length > 12 && before.length < 100)
      const times = before.map(({ created_at }) => created_at)
      assert.deepEqual(times, times.toSorted().reverse())
      const seen: string[] = []
      let query = '?limit=7'
      for (let n = 0; ; n++) {
        const page = (await list(query)).body
        seen.push(...page.data.map(({ sub }) => sub))
        await service.clock.leap(1)
        await arrive(`late ${n}`)
        if (page.next_cursor === null) break
        query = `?limit=7&cursor=${page.next_cursor}`
      }
      assert.deepEqual(
        seen,
        before.map(({ sub }) => sub),
      )
      const [newest] = (await list('?limit=1')).body.data
      assert.match(String(newest?.sub), /^late /)
    })

    test('the search finds users by the beginning of a sub or of an e-mail address, page by page', async () => {
      const service = await under.start()
      const people: [sub: string, email: string | null][] = [
        ['ada-1', 'Countess@Example.com'],
        ['ada-2', null],
        ['adb', 'ada@example.com'],
        ['grace', 'ADA.second@example.com'],
        ['Ada-3', 'third@example.com'],
        ['100%', 'percent@example.com'],
      ]
      for (const [sub, email] of people) {
        assert.equal((await as(service, { sub, ...(email && { email }) })('GET', ME)).status, 200)
      }
      const reader = as(service, { sub: 'reader', scopes: ['read:users'] })
      const find = async (text: string, rest = '') => {
        const answer = await reader<Page>('GET', `/v1/users?search=${encodeURIComponent(text)}${rest}`)
        assert.equal(answer.status, 200, answer.text)
        return answer.body
      }
      const subs = async (text: string) => (await find(text)).data.map(({ sub }) => sub)
      assert.deepEqual(await subs('ada'), ['ada-1', 'ada-2', 'grace', 'adb'])
      assert.deepEqual(await subs('countess@EX'), ['ada-1'])
      assert.deepEqual(await subs('Ada-'), ['Ada-3'], 'a sub is found as it is written')
      assert.deepEqual(await subs('100%'), ['100%'])
      assert.deepEqual(await subs('%'), [])
      const paged: string[] = []
      for (let cursor = ''; ; ) {
        const page = await find('ada', `&limit=1${cursor}`)
        paged.push(...page.data.map(({ sub }) => sub))
        if (page.next_cursor === null) break
        cursor = `&cursor=${page.next_cursor}`
      }
      assert.deepEqual(paged, ['ada-1', 'ada-2', 'grace', 'adb'])
      const foreign = (await reader<Page>('GET', '/v1/users?limit=1')).body.next_cursor
      const refused = await reader('GET', `/v1/users?search=a&cursor=${foreign}`)
      assertError(service, refused, invalid('querystring/cursor is not a cursor of this list'))
      assertError(service, await reader('GET', '/v1/users?search='), invalid(/^querystring\/search must/))
      const none = as(service, { sub: 'none' })
      assertError(service, await none('GET', '/v1/users?search=a'), FORBIDDEN)
    })

    test('the list refuses invalid limits and cursors of other lists', async () => {
      const service = await under.shared()
      const admin = as(service, { sub: 'admin', scopes: ['admin:*'] })
      for (const name of ['x', 'y']) await admin('POST', '/v1/projects', { body: { name } })
      const projects = (await admin<Page>('GET', '/v1/projects?limit=1')).body.next_cursor
      const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')
      const cursors = [projects, 'x', encode(['users', 'a']), encode(['users', '1', 'a']), encode(['users', 1.5, 'a'])]
      for (const cursor of [...cursors, encode(['users', 1, 'a\u0000']), encode(['users', 1e300, 'a']), '%00']) {
        const answer = await admin('GET', `/v1/users?cursor=${cursor}`)
        assertError(service, answer, invalid('querystring/cursor is not a cursor of this list'))
      }
      for (const limit of ['0', '101', 'abc', '1e999']) {
        assertError(service, await admin('GET', `/v1/users?limit=${limit}`), invalid(/^querystring\/limit must be/))
      }
    })
  })
})
