import assert from 'node:assert/strict'
import { once } from 'node:events'
import type { Socket } from 'node:net'
import { Readable } from 'node:stream'
import { describe, test } from 'node:test'
import { CALLER_BOUNDS, EXPECTED_BYTES, Hold, TURNS_BETWEEN } from '../../src/http/admission/admission.ts'
import { ANSWER_BOUNDS } from '../../src/http/admission/byte-budget.ts'
import { HANDLER_DEADLINE } from '../../src/http/admission/handler-deadline.ts'
import { BUSY_TURN, OVERLOAD_BOUNDS } from '../../src/http/admission/overload.ts'
import { STALLED_READER } from '../../src/http/admission/stalled-readers.ts'
import type { App } from '../../src/http/app-instance.ts'
import { bearer, callerOf } from '../../src/http/gate/access.ts'
import { SERVER_LIMITS } from '../../src/http/server/server-limits.ts'
import { assertError } from '../support/assert-error.ts'
import { sharedJobWorld } from '../support/job-world.ts'
import { MetricsText } from '../support/metrics-text.ts'
import { openSocket, parseAnswers, readToEnd } from '../support/raw-exchange.ts'
import { forEachService, forEachVariant, onOneService, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

const MB = 1024 * 1024
/** More than the system takes from the service for a client that does not read; two of them are below 16 MB. */
const LARGE = 7.5 * MB
const PAGES_AT_ONCE = ANSWER_BOUNDS.principal.callerBytes / EXPECTED_BYTES.page
const ME = '/v1/users/me'
const UNREAD = {
  status: 503,
  code: 'service_unavailable',
  message: 'Too many answers wait to be read',
} as const

/** Routes with large answers: at once, and of a handler that the test ends. */
function largeRoutes() {
  const begun: string[] = []
  const ended = Promise.withResolvers<void>()
  const text = 'x'.repeat(LARGE)
  const hang = async () => {
    begun.push('handler')
    await ended.promise
    return { text: 'small' }
  }
  const extend = (app: App) => {
    app.register(async (child) => {
      const config = { access: bearer() }
      child.get('/large', { config }, () => ({ text }))
      child.get('/huge', { config }, () => ({ text: text.repeat(3) }))
      child.get('/hang', { config }, hang)
      child.get('/page', { config: { ...config, largeAnswer: 'page' } }, hang)
      child.post('/change', { config: { ...config, largeAnswer: 'document' } }, async () => {
        begun.push('change')
        return { text }
      })
      child.get('/streamed', { config: { ...config, largeAnswer: 'page' } }, (_request, reply) =>
        reply.type('text/plain').send(Readable.from([Buffer.alloc(LARGE), Buffer.alloc(LARGE)])),
      )
    })
  }
  return { extend, begun, end: () => ended.resolve() }
}

describe('unread answers', () => {
  /** Sends requests for these paths at once, and reads nothing. */
  const ask = async (service: TestService, sub: string, ...paths: string[]) => {
    const socket = await openSocket(service.url)
    const head = `Host: x\r\nAuthorization: Bearer ${service.tokenFor({ sub })}\r\n`
    socket.write(paths.map((path) => `GET ${path} HTTP/1.1\r\n${head}\r\n`).join(''))
    return socket
  }
  const get = (service: TestService, sub: string, path: string) =>
    service.request('GET', path, { token: service.tokenFor({ sub }) })
  const unreadBytes = ({ services }: TestService) => services.admission.answers.totalBytes
  const refusals = async (service: TestService, bound: string) => {
    const { text } = await service.request('GET', '/metrics', { token: service.tokenFor({ scopes: ['admin:*'] }) })
    return new MetricsText(text).sum('requests_bounded_total', { bound })
  }
  /** As an answer of 16 MB that the principal does not read. */
  const holdUnread = ({ services }: TestService, sub: string) => {
    const hold = new Hold(services.admission, { kind: 'read', urgency: 'ordinary' })
    assert.equal(hold.enterCaller(sub), true)
    assert.equal(hold.answer(16 * MB, { kind: 'principal', id: sub }), null)
    return hold
  }
  const assertReleased = ({ services }: TestService) => until(() => services.admission.isEmpty)
  const destroy = (sockets: readonly Socket[]) => {
    for (const socket of sockets) socket.destroy()
  }

  forEachVariant((under) => {
    test('a principal with 16 MB of unread answers gets no further large one; small ones and other callers are served', async () => {
      const service = await under.start({ extend: largeRoutes().extend })
      const sockets = [await ask(service, 'deaf', '/large'), await ask(service, 'deaf', '/large')]
      await until(() => unreadBytes(service) > 2 * LARGE)
      const refused = await get(service, 'deaf', '/large')
      assertError(service, refused, UNREAD)
      assert.equal(refused.headers['retry-after'], '1')
      assert.equal(await refusals(service, 'principal_answer'), 1)
      assert.equal((await get(service, 'deaf', ME)).status, 200)
      assert.equal((await get(service, 'other', '/large')).status, 200)
      assert.equal(unreadBytes(service), 2 * (LARGE + '{"text":""}'.length), 'an answer that was read is not counted')
      const counts = service.services.admission.callers.get('deaf')?.counts
      assert.deepEqual(counts, { read: 2, change: 0 }, 'a request is in progress until its answer is taken')
      destroy(sockets)
      await assertReleased(service)
      assert.equal((await get(service, 'deaf', '/large')).status, 200)
    })

    test('all principals together have at most 112 MB of unread answers; small answers are still sent', async () => {
      const service = await under.start({ extend: largeRoutes().extend })
      const holds = Array.from({ length: 7 }, (_, n) => holdUnread(service, `deaf-${n}`))
      assertError(service, await get(service, 'other', '/large'), UNREAD)
      assert.equal(await refusals(service, 'answer'), 1)
      assert.equal((await get(service, 'other', ME)).status, 200)
      for (const hold of holds) hold.take()
      assert.equal((await get(service, 'other', '/large')).status, 200)
      await assertReleased(service)
    })
  })

  onOneService((under) => {
    test('an answer larger than the share of a principal is sent if no other one is unread', async () => {
      const service = await under.start({ extend: largeRoutes().extend })
      const { status, text } = await get(service, 'huge', '/huge')
      assert.equal(status, 200)
      assert.ok(text.length > ANSWER_BOUNDS.principal.callerBytes)
      await assertReleased(service)
    })

    test('a reader that takes nothing for 30 s is cut, and its answer is no longer held', async () => {
      const service = await under.start({ extend: largeRoutes().extend })
      assert.deepEqual([service.app.server.timeout, SERVER_LIMITS.connectionTimeout], [30_000, 30_000])
      const connected = once(service.app.server, 'connection')
      await ask(service, 'deaf', '/large')
      await until(() => unreadBytes(service) > LARGE)
      shortenTimeout(...((await connected) as [Socket]))
      await assertReleased(service)
      await until(() => connectionsOf(service).then((count) => count === 0))
    })

    test('a reader that takes nothing for 30 s is cut, also if it sends bytes meanwhile', async () => {
      const service = await under.start({ extend: largeRoutes().extend })
      const [deaf, slow] = [await ask(service, 'deaf', '/large'), await ask(service, 'slow', '/large')]
      slow.pause()
      await until(() => unreadBytes(service) > 2 * LARGE)
      for (let round = 0; round < 4; round++) {
        // Empty lines between requests are allowed.
        deaf.write('\r\n')
        const enough = Math.min(slow.bytesRead + MB, LARGE)
        slow.resume()
        await until(() => slow.bytesRead >= enough)
        slow.pause()
        await service.clock.advance(STALLED_READER.everyMs)
      }
      await until(() => service.services.admission.callers.get('deaf') === undefined)
      assert.equal(slow.destroyed, false)
      slow.resume()
      await assertReleased(service)
      destroy([deaf, slow])
    })

    test('the reader of an answer behind another one on its connection has 30 s from the end of that one, also if it sends bytes', async () => {
      const { extend, end } = largeRoutes()
      const service = await under.start({ extend })
      const { callers } = service.services.admission
      // Node's own timer would close the connection while the test waits.
      service.app.server.timeout = 0
      const deaf = await ask(service, 'deaf', '/hang', '/large')
      await until(() => unreadBytes(service) > LARGE)
      const pass = () => {
        deaf.write('\r\n')
        return service.clock.advance(STALLED_READER.everyMs)
      }
      await pass()
      end()
      await until(() => callers.get('deaf')?.counts.read === 1)
      for (let round = 0; round < 2; round++) await pass()
      assert.ok(unreadBytes(service) > LARGE, '30 s after it was ready, but 20 s after its turn')
      for (let round = 0; round < 2; round++) await pass()
      await assertReleased(service)
    })

    test('a read whose client has left before it had to wait does not run', async () => {
      const { services } = await under.start({ extend: largeRoutes().extend })
      for (const [kind, runs] of [
        ['read', false],
        ['change', true],
      ] as const) {
        const hold = new Hold(services.admission, { kind, urgency: 'ordinary', expects: 'page' })
        hold.enterCaller('gone')
        hold.take()
        let hasRoom: boolean | null = null
        hold.awaitRoom((room) => {
          hasRoom = room
        })
        assert.equal(hasRoom, runs)
        hold.endWork()
      }
      assert.ok(services.admission.isEmpty)
    })

    test('handlers that find large documents run one after the other, as much as the principal has room for', async () => {
      const { services } = await under.start({ extend: largeRoutes().extend })
      const { admission } = services
      const begun: Hold[] = []
      const holds = Array.from({ length: 10 }, () => {
        const hold = new Hold(admission, { kind: 'read', urgency: 'ordinary', expects: 'document' })
        hold.enterCaller('reader')
        hold.awaitRoom(() => {
          void hold.reserve(2 * MB).then(() => begun.push(hold))
        })
        return hold
      })
      for (let done = 0; done < holds.length; done++) {
        await until(() => begun.length === Math.min(holds.length, done + 2))
        assert.ok((admission.callers.get('reader')?.reservedBytes ?? 0) <= 16 * MB)
        begun[done]?.endWork()
        begun[done]?.take()
      }
      assert.ok(admission.isEmpty)
    })

    test('a stream whose reader takes nothing for 30 s is cut', async () => {
      const [begun, released] = [Promise.withResolvers<Socket>(), Promise.withResolvers<void>()]
      const extend = (app: App) => {
        app.register(async (child) => {
          child.get('/stream', { config: { access: bearer(), streams: true } }, (request, reply) => {
            const stream = service.services.openStreams.reserve(callerOf(request))
            stream.onRelease(() => released.resolve())
            stream.begin(reply)
            stream.sendPiece(Buffer.alloc(LARGE))
            begun.resolve(request.socket)
          })
        })
      }
      const service = await under.start({ extend })
      await ask(service, 'deaf', '/stream')
      shortenTimeout(await begun.promise)
      await released.promise
      await assertReleased(service)
    })

    test('answers that wait behind another one on their connection are returned when it closes', async () => {
      const { extend, end } = largeRoutes()
      const service = await under.start({ extend })
      const { callers } = service.services.admission
      const socket = await ask(service, 'deaf', '/hang', '/large', '/large', ...Array.from({ length: 30 }, () => ME))
      await until(() => unreadBytes(service) > 2 * LARGE)
      await until(() => callers.get('deaf')?.counts.read === 33)
      socket.destroy()
      await until(() => unreadBytes(service) === 0)
      await until(() => callers.get('deaf')?.counts.read === 1)
      end()
      await assertReleased(service)
    })

    test('pages of one principal run two at a time; the others wait and are answered, and no other caller waits', async () => {
      const { extend, begun, end } = largeRoutes()
      const service = await under.start({ extend })
      const asked = Array.from({ length: 20 }, () => get(service, 'reader', '/page'))
      const waiting = () => service.services.admission.callers.get('reader')?.waiting.length
      await until(() => begun.length > 0 && begun.length + (waiting() ?? 0) === 20)
      await until(() => begun.length === PAGES_AT_ONCE)
      for (let turn = 0; turn < 3 * TURNS_BETWEEN; turn++) await new Promise(setImmediate)
      assert.deepEqual([begun.length, waiting()], [PAGES_AT_ONCE, 20 - PAGES_AT_ONCE])
      assert.equal(service.services.admission.overload.inFlight('ordinary'), PAGES_AT_ONCE, 'the others do not count')
      const other = get(service, 'other', '/page')
      await until(() => begun.length === PAGES_AT_ONCE + 1)
      end()
      for (const { status } of await Promise.all([...asked, other])) assert.equal(status, 200)
      assert.equal(begun.length, 21)
      await assertReleased(service)
    })

    test('pages, also those of different callers, begin some turns of the event loop apart, so that other requests run and connections are accepted in between', async () => {
      const { extend, begun, end } = largeRoutes()
      const service = await under.start({ extend })
      end()
      const { callers } = service.services.admission
      const subs = ['reader', 'another']
      const unread = subs.map((sub) => holdUnread(service, sub))
      const asked = Array.from({ length: 10 }, (_, n) => get(service, subs[n % 2] ?? '', '/page'))
      await until(() => subs.every((sub) => callers.get(sub)?.waiting.length === 5))
      for (const hold of unread) hold.take()
      const turns: number[] = []
      for (let turn = 0; turns.length < 10; turn++) {
        await new Promise(setImmediate)
        while (turns.length < begun.length) turns.push(turn)
      }
      const between = turns.slice(1).map((turn, n) => turn - (turns[n] ?? 0))
      assert.ok(Math.min(...between) >= TURNS_BETWEEN, String(between))
      for (const { status } of await Promise.all(asked)) assert.equal(status, 200)
      await assertReleased(service)
    })

    test('a page runs after the turn that read its request, so that no request of that turn is refused for it', async () => {
      const extend = (app: App) => {
        app.register(async (child) => {
          child.get('/slow', { config: { access: bearer(), largeAnswer: 'page' } }, () => {
            // What a handler does without a pause takes time.
            void service.clock.leap(OVERLOAD_BOUNDS.ordinary.turnMs + 1)
            return {}
          })
        })
      }
      const service = await under.start({ extend })
      await get(service, 'reader', ME)
      const socket = await ask(service, 'reader', ...Array.from({ length: BUSY_TURN }, () => ME), '/slow', ME, ME)
      socket.write('GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n')
      const statuses = parseAnswers(await readToEnd(socket)).map(({ status }) => status)
      assert.deepEqual(
        statuses,
        Array.from({ length: BUSY_TURN + 4 }, () => 200),
      )
      await assertReleased(service)
    })

    test('a page waits until the principal has read enough of its other answers', async () => {
      const { extend, begun, end } = largeRoutes()
      const service = await under.start({ extend })
      end()
      const deaf = [await ask(service, 'reader', '/large'), await ask(service, 'reader', '/large')]
      await until(() => unreadBytes(service) > 2 * LARGE)
      const page = get(service, 'reader', '/page')
      await until(() => service.services.admission.callers.get('reader')?.counts.read === 3)
      assert.equal((await get(service, 'reader', ME)).status, 200)
      assert.equal(begun.length, 0)
      destroy(deaf.slice(1))
      assert.equal((await page).status, 200, 'half of the share is enough')
      destroy(deaf)
      await assertReleased(service)
    })

    test('a client that leaves while it waits frees its place; its handler never runs', async () => {
      const { extend, begun, end } = largeRoutes()
      const service = await under.start({ extend })
      const { callers } = service.services.admission
      const running = Array.from({ length: PAGES_AT_ONCE }, () => get(service, 'reader', '/page'))
      await until(() => begun.length === PAGES_AT_ONCE)
      const waiting = await Promise.all(Array.from({ length: 3 }, () => ask(service, 'reader', '/page')))
      await until(() => callers.get('reader')?.waiting.length === 3)
      destroy(waiting)
      await until(() => callers.get('reader')?.counts.read === PAGES_AT_ONCE)
      assert.equal(callers.get('reader')?.waiting.length, 0)
      end()
      for (const { status } of await Promise.all(running)) assert.equal(status, 200)
      assert.equal(begun.length, PAGES_AT_ONCE)
      await assertReleased(service)
    })

    test('a request that waits too long is 503; its handler never runs', async () => {
      const { extend, begun, end } = largeRoutes()
      const service = await under.start({ extend })
      end()
      const unread = holdUnread(service, 'reader')
      const asked = Array.from({ length: 3 }, () => get(service, 'reader', '/page'))
      await until(() => service.services.admission.callers.get('reader')?.waiting.length === 3)
      await service.clock.advance(HANDLER_DEADLINE.rounds * HANDLER_DEADLINE.roundMs)
      for (const answer of await Promise.all(asked)) {
        assertError(service, answer, { ...UNREAD, message: 'The request took too long' })
      }
      unread.take()
      await assertReleased(service)
      assert.deepEqual(begun, [])
    })

    test('a change waits for room before it is made, and is answered once it is made', async () => {
      const { extend, begun } = largeRoutes()
      const service = await under.start({ extend })
      const { callers } = service.services.admission
      const unread = holdUnread(service, 'writer')
      const change = service.request('POST', '/change', { token: service.tokenFor({ sub: 'writer' }), body: {} })
      await until(() => callers.get('writer')?.waiting.length === 1)
      assert.deepEqual(begun, [])
      unread.take()
      assert.equal((await change).status, 200)
      const made = new Hold(service.services.admission, { kind: 'change', urgency: 'change' })
      for (const _ of [1, 2]) assert.equal(made.answer(20 * MB, { kind: 'principal', id: 'other' }), null)
      made.take()
      await assertReleased(service)
    })

    test('a streamed answer holds the room of a page until it is taken', async () => {
      const service = await under.start({ extend: largeRoutes().extend })
      const socket = await ask(service, 'deaf', '/streamed')
      await until(() => unreadBytes(service) === EXPECTED_BYTES.page)
      assert.equal(service.services.admission.callers.get('deaf')?.reservedBytes, 0)
      socket.destroy()
      await assertReleased(service)
    })

    test('250 reads whose answers are not taken are in progress: the next one is 429', async () => {
      const service = await under.start({ extend: largeRoutes().extend })
      const behind = Array.from({ length: CALLER_BOUNDS.read - 1 }, () => ME)
      const socket = await ask(service, 'deaf', '/large', ...behind)
      await until(() => service.services.admission.callers.get('deaf')?.counts.read === CALLER_BOUNDS.read)
      assert.equal((await get(service, 'deaf', ME)).status, 429)
      assert.equal((await get(service, 'other', ME)).status, 200)
      socket.write(`GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`)
      const answers = parseAnswers(await readToEnd(socket))
      assert.deepEqual([...new Set(answers.map(({ status }) => status))], [200], 'they are read after all')
      await assertReleased(service)
    })
  })

  forEachService((under) => {
    const shared = sharedJobWorld(under, { runtime: false })

    test('20 connections that read large pages are all answered, each with at most 2 MB, and hold nothing afterwards', async () => {
      const world = await shared()
      for (let n = 0; n < 8; n++) {
        const end = { thread_id: crypto.randomUUID(), run_id: crypto.randomUUID(), status: 'success' }
        await world.callback('report', { ...end, values: { report: 'x'.repeat(0.9 * MB) } })
      }
      const ask = () => world.service.request<{ data: object[] }>('GET', '/jobs?limit=8', { token: world.admin })
      const answers = await Promise.all(Array.from({ length: 20 }, ask))
      for (const { status, body, text } of answers) {
        assert.deepEqual([status, body.data.length], [200, 2])
        assert.ok(text.length <= 2 * MB, String(text.length))
      }
      await until(() => world.service.services.admission.isEmpty)
    })
  })
})

/**
 * Node measures this time, so that the clock of the test cannot move it. It is shortened once the answer waits: a busy machine
 * may take longer than that to read the request.
 */
function shortenTimeout(socket: Socket): void {
  assert.equal(socket.timeout, SERVER_LIMITS.connectionTimeout)
  socket.setTimeout(100)
}

async function connectionsOf({ app }: TestService): Promise<number> {
  const counted = Promise.withResolvers<number>()
  app.server.getConnections((error, count) => (error ? counted.reject(error) : counted.resolve(count)))
  return counted.promise
}
