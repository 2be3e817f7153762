import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { App } from '../../src/http/app-instance.ts'
import { publicAccess } from '../../src/http/gate/access.ts'
import { assertError } from '../support/assert-error.ts'
import type { TestResponse } from '../support/http-client.ts'
import { openSocket, parseAnswers, type RawAnswer, rawExchange, readToEnd } from '../support/raw-exchange.ts'
import { forEachService, forEachVariant, type TestService } from '../support/service.ts'
import { until } from '../support/until.ts'

const HOST = 'Host: x\r\n'
const NOT_HTTP = { status: 400, code: 'invalid_request', message: 'The request is not valid HTTP' } as const

const asResponse = ({ status, headers, body }: RawAnswer): TestResponse => ({
  status,
  headers,
  text: body,
  body: JSON.parse(body),
})

/** The last answer is this refusal and closes the connection; returns the status of each answer. */
function assertRefusedAtEnd(
  service: TestService,
  answers: RawAnswer[],
  expected: Parameters<typeof assertError>[2] = NOT_HTTP,
): number[] {
  const last = answers.at(-1)
  assert.ok(last, 'the connection was closed without an answer')
  assertError(service, asResponse(last), expected)
  assert.equal(last.headers.connection, 'close')
  return answers.map(({ status }) => status)
}

describe('connections that are not HTTP, or stop being HTTP', () => {
  forEachService((under) => {
    const post = (service: TestService, body: string, length: number) =>
      [
        'POST /v1/projects HTTP/1.1',
        'Host: x',
        `Authorization: Bearer ${service.tokenFor({ scopes: ['read:projects', 'write:projects'] })}`,
        'Content-Type: application/json',
        `Content-Length: ${length}`,
        '',
        body,
      ].join('\r\n')

    test('a request followed by garbage in the same packet gets its answer, then the garbage is refused', async () => {
      const service = await under.shared()
      const body = '{"name":"before the garbage"}'
      const answers = await rawExchange(service.url, `${post(service, body, body.length)}garbage\r\n\r\n`)
      assert.deepEqual(assertRefusedAtEnd(service, answers), [201, 400])
      const { id } = JSON.parse(answers[0]?.body ?? '') as { id: string }
      const token = service.tokenFor({ scopes: ['read:projects'] })
      assert.equal((await service.request('GET', `/v1/projects/${id}`, { token })).status, 200)
    })

    test('a request whose length counts characters is answered, whether or not the rest still makes a body', async () => {
      const service = await under.shared()
      const cut = '{"name":"Größe"}'
      const broken = await rawExchange(service.url, Buffer.from(post(service, cut, cut.length)))
      const message = 'body is not valid JSON'
      assert.deepEqual(assertRefusedAtEnd(service, broken, { ...NOT_HTTP, message }), [400])
      const whole = '{"name":"Größe"}  '
      const answers = await rawExchange(service.url, Buffer.from(post(service, whole, whole.length)))
      assert.deepEqual(assertRefusedAtEnd(service, answers), [201, 400])
    })
  })

  forEachVariant((under) => {
    test('a method of RTSP is refused like any other request that is not HTTP', async () => {
      const service = await under.shared()
      const methods = ['ANNOUNCE', 'DESCRIBE', 'FLUSH', 'GET_PARAMETER', 'PAUSE', 'PLAY', 'RECORD', 'REDIRECT']
      for (const method of [...methods, 'SETUP', 'SET_PARAMETER', 'TEARDOWN']) {
        for (const version of ['RTSP/1.0', 'RTSP/2.0']) {
          const answers = await rawExchange(
            service.url,
            `${method} /v1/projects ${version}\r\nX-Request-Id: mine\r\n\r\n`,
          )
          assert.deepEqual(assertRefusedAtEnd(service, answers), [400], method)
          assert.equal(answers[0]?.headers['x-request-id'], 'mine')
        }
      }
    })

    test('GET and POST over RTSP/1.0 are refused, although the parser takes them for HTTP/1.0', async () => {
      const service = await under.shared()
      for (const method of ['GET', 'POST', 'OPTIONS']) {
        const answers = await rawExchange(service.url, `${method} /healthz RTSP/1.0\r\n\r\n`)
        assert.deepEqual(assertRefusedAtEnd(service, answers), [400], method)
      }
      const second = `GET /healthz HTTP/1.1\r\n${HOST}\r\nGET /healthz RTSP/1.0\r\n\r\n`
      assert.deepEqual(assertRefusedAtEnd(service, await rawExchange(service.url, second)), [200, 400])
      const sequenced = 'GET /healthz HTTP/1.0\r\nCSeq: 1\r\n\r\n'
      assert.deepEqual(assertRefusedAtEnd(service, await rawExchange(service.url, sequenced)), [400])
      const [old] = await rawExchange(service.url, 'GET /healthz HTTP/1.0\r\nX: GET /healthz RTSP/1.0\r\n\r\n')
      assert.equal(old?.status, 200, 'HTTP/1.0 is served')
    })

    test('a request behind one of RTSP is not executed', async () => {
      const service = await under.start()
      const token = service.tokenFor({ scopes: ['read:projects', 'write:projects'] })
      const body = '{"name":"hidden"}'
      const hidden = `POST /v1/projects HTTP/1.1\r\n${HOST}Authorization: Bearer ${token}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`
      const answers = await rawExchange(service.url, `DESCRIBE /x RTSP/1.0\r\nContent-Length: 2\r\n\r\n{}${hidden}`)
      assert.deepEqual(assertRefusedAtEnd(service, answers), [400])
      const list = await service.request<{ data: unknown[] }>('GET', '/v1/projects', { token })
      assert.deepEqual(list.body.data, [])
    })

    test('a tunnel is refused, after the answers to the requests before it', async () => {
      const service = await under.shared()
      const refusal = { status: 405, code: 'method_not_allowed', message: 'CONNECT is not allowed here' } as const
      const connect = `CONNECT other:443 HTTP/1.1\r\n${HOST}\r\n`
      const alone = await rawExchange(service.url, connect)
      assert.deepEqual(assertRefusedAtEnd(service, alone, refusal), [405])
      assert.match(alone[0]?.headers.allow ?? '', /GET/)
      const hidden = `GET /healthz HTTP/1.1\r\n${HOST}\r\n`
      const behind = await rawExchange(service.url, hidden + connect + hidden)
      assert.deepEqual(assertRefusedAtEnd(service, behind, refusal), [200, 405])
    })

    test('no answer comes before those of earlier requests, however long they take', async () => {
      const { slowly, release, began } = slowRoute()
      const service = await under.start({ extend: slowly })
      const slow = `GET /slow HTTP/1.1\r\n${HOST}\r\n`
      const tails = {
        garbage: ['garbage\r\n\r\n', 400],
        'a body in broken chunks': [
          `POST /v1/devices HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\nzz\r\n`,
          401,
        ],
        'a tunnel': [`CONNECT other:443 HTTP/1.1\r\n${HOST}\r\n`, 405],
        RTSP: ['DESCRIBE /x RTSP/1.0\r\n\r\n', 400],
      } as const
      for (const [name, [tail, status]] of Object.entries(tails)) {
        const socket = await openSocket(service.url)
        const read = readToEnd(socket)
        socket.write(slow + tail)
        await until(() => began() === 1)
        // More garbage, and the end of what the client sends, change nothing.
        socket.end('and more\r\n\r\n')
        release()
        const answers = parseAnswers(await read)
        assert.deepEqual(
          answers.map((answer) => answer.status),
          [200, status],
          name,
        )
        assert.equal(answers[0]?.body, '{"slow":true}', name)
      }
    })

    test('a client that goes on sending still reads what it was answered', async () => {
      const service = await under.shared()
      const flood = `GET /healthz HTTP/1.1\r\n${HOST}\r\n${'garbage\r\n\r\n'.repeat(40_000)}`
      assert.deepEqual(assertRefusedAtEnd(service, await rawExchange(service.url, flood)), [200, 400])
    })
  })
})

/** A public route that answers when it is let. */
function slowRoute() {
  let waiting: (() => void)[] = []
  const slowly = (app: App) => {
    const config = { access: publicAccess('a stub of this test') }
    app.get('/slow', { config }, async () => {
      await new Promise<void>((resolve) => waiting.push(resolve))
      return { slow: true }
    })
  }
  const release = () => {
    for (const resolve of waiting) resolve()
    waiting = []
  }
  return { slowly, release, began: () => waiting.length }
}
