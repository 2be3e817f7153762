import assert from 'node:assert/strict'
import type { Socket } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { openSocket, parseAnswers, type RawAnswer, rawExchange, readToEnd } from '../support/raw-exchange.ts'
import { type Served, sharedIssuer, startServe } from '../support/served.ts'

const HOST = 'Host: x\r\n'
const CLOSE = 'Connection: close\r\n'
/** A smuggled request in the body of another one; it would be answered with 200. */
const HIDDEN = `GET /healthz HTTP/1.1\r\n${HOST}${CLOSE}\r\n`
const CHUNKED = 'Transfer-Encoding: chunked\r\n'

describe('bytes that are not quite HTTP', () => {
  let served: Served
  let token: string
  before(async () => {
    served = await startServe({ settings: { WEBHOOK_SECRET: 'secret', RATE_LIMIT_UNAUTHENTICATED: '1000000' } })
    token = (await sharedIssuer()).mint({ sub: 'a-user', scopes: ['read:projects', 'write:projects'] })
  })

  const get = (...lines: string[]) =>
    `GET /healthz HTTP/1.1\r\n${HOST}${lines.map((line) => `${line}\r\n`).join('')}\r\n`
  const post = (headers: string, body: string) =>
    `POST /v1/projects HTTP/1.1\r\n${HOST}Authorization: Bearer ${token}\r\nContent-Type: application/json\r\n${headers}\r\n${body}`
  const callBack = (headers: string, body: string) =>
    `POST /webhooks/agent HTTP/1.1\r\n${HOST}X-Webhook-Secret: secret\r\n${headers}\r\n${body}`

  const assertRefused = (answers: RawAnswer[], name: string, status = 400) => {
    assert.deepEqual(
      answers.map((answer) => answer.status),
      [status],
      name,
    )
    const [answer] = answers
    const { error } = JSON.parse(answer?.body ?? '')
    assert.deepEqual(Object.keys(error), ['code', 'message', 'requestId'], name)
    assert.equal(error.requestId, answer?.headers['x-request-id'], name)
    assert.equal(answer?.headers.connection, 'close', name)
  }

  test('a request with two lengths or an unclear length is refused once, and a request hidden in it is never executed', async () => {
    const bodies = {
      'a length and chunks': post(`Content-Length: 4\r\n${CHUNKED}`, `0\r\n\r\n${HIDDEN}`),
      'chunks and a length': post(`${CHUNKED}Content-Length: 4\r\n`, `0\r\n\r\n${HIDDEN}`),
      'two lengths': post('Content-Length: 0\r\nContent-Length: 5\r\n', HIDDEN),
      'one length twice': post('Content-Length: 5\r\nContent-Length: 5\r\n', HIDDEN),
      'a list of lengths': post('Content-Length: 5, 5\r\n', HIDDEN),
      'a length with a sign': post('Content-Length: +5\r\n', HIDDEN),
      'a negative length': post('Content-Length: -5\r\n', HIDDEN),
      'a length in hexadecimal': post('Content-Length: 0x5\r\n', HIDDEN),
      'a length beyond all numbers': post('Content-Length: 99999999999999999999\r\n', HIDDEN),
      'an empty length': post('Content-Length:\r\n', HIDDEN),
      'a blank before the colon': post('Content-Length : 5\r\n', HIDDEN),
      'a blank before the colon of a coding': post('Transfer-Encoding : chunked\r\n', `0\r\n\r\n${HIDDEN}`),
      'an unknown coding': post('Transfer-Encoding: xchunked\r\n', `0\r\n\r\n${HIDDEN}`),
      'another coding before chunks': post('Transfer-Encoding: identity, chunked\r\n', `0\r\n\r\n${HIDDEN}`),
      'another coding after chunks': post('Transfer-Encoding: chunked, identity\r\n', `0\r\n\r\n${HIDDEN}`),
      'two codings': post(`${CHUNKED}Transfer-Encoding: identity\r\n`, `0\r\n\r\n${HIDDEN}`),
      'a coding with a control character': post('Transfer-Encoding: \x0bchunked\r\n', `0\r\n\r\n${HIDDEN}`),
      'a folded coding': post('Transfer-Encoding:\r\n chunked\r\n', `0\r\n\r\n${HIDDEN}`),
      'a chunk of negative size': post(CHUNKED, `-2\r\n{}\r\n0\r\n\r\n${HIDDEN}`),
      'a chunk beyond all numbers': post(CHUNKED, `FFFFFFFFFFFFFFFFFF\r\n${HIDDEN}`),
      'a chunk longer than it says': post(CHUNKED, `2\r\n{}{}\r\n0\r\n\r\n${HIDDEN}`),
      'chunks ended by bare line feeds': post(CHUNKED, `2\n{}\n0\n\n${HIDDEN}`),
      'an extension without end': post(CHUNKED, `2;${'a'.repeat(17_000)}\r\n{}\r\n0\r\n\r\n${HIDDEN}`),
    }
    for (const [name, bytes] of Object.entries(bodies)) assertRefused(await rawExchange(served.url, bytes), name)
  })

  test('a request of HTTP/1.0 with a transfer coding ends its connection, and no request after it is executed', async () => {
    const old = (bytes: string) =>
      bytes.replace('HTTP/1.1', 'HTTP/1.0').replace(HOST, `${HOST}Connection: keep-alive\r\n`)
    const bodies = {
      chunks: old(post(CHUNKED, `0\r\n\r\n${HIDDEN}`)),
      'chunks and a length': old(post(`Content-Length: 5\r\n${CHUNKED}`, `0\r\n\r\n${HIDDEN}`)),
      'a callback in chunks': old(callBack(CHUNKED, `2\r\n{}\r\n0\r\n\r\n${HIDDEN}`)),
      'a public path': old(`GET /healthz HTTP/1.1\r\n${HOST}${CHUNKED}\r\n0\r\n\r\n${HIDDEN}`),
    }
    for (const [name, bytes] of Object.entries(bodies)) assertRefused(await rawExchange(served.url, bytes), name)
    const kept = await rawExchange(served.url, `${old(get())}${HIDDEN}`)
    assert.deepEqual(
      kept.map(({ status }) => status),
      [200, 200],
      'without a coding the connection stays open',
    )
  })

  test('an invalid head is refused once', async () => {
    const heads = {
      'a folded header': get('X-A: b', ' c'),
      'bare line feeds': `GET /healthz HTTP/1.1\nHost: x\n\n${HIDDEN}`,
      'bare carriage returns': `GET /healthz HTTP/1.1\rHost: x\r\r${HIDDEN}`,
      'a NUL in a value': get('X-A: a\0b'),
      'a NUL in the path': `GET /heal\0thz HTTP/1.1\r\n${HOST}\r\n`,
      'a carriage return in a value': get('X-A: a\rX-B: c'),
      'a blank in a name': get('X A: b'),
      'no name': get(': b'),
      'HTTP/0.9': 'GET /healthz\r\n\r\n',
      'HTTP/1.2': `GET /healthz HTTP/1.2\r\n${HOST}\r\n`,
      'the preface of HTTP/2': 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
      'a TLS hello': Buffer.from('16030100a5010000a10303', 'hex').toString('latin1'),
      'no slash': `GET healthz HTTP/1.1\r\n${HOST}\r\n`,
      'an authority': `GET other:443 HTTP/1.1\r\n${HOST}\r\n`,
      'a method of RTSP': 'DESCRIBE /healthz RTSP/1.0\r\n\r\n',
      'an unknown method': `STEAL /healthz HTTP/1.1\r\n${HOST}\r\n`,
    }
    for (const [name, bytes] of Object.entries(heads)) assertRefused(await rawExchange(served.url, bytes), name)
    const tooMuch = {
      'a long path': `GET /${'a'.repeat(33_000)} HTTP/1.1\r\n${HOST}\r\n`,
      'many headers': get(...manyHeaders()),
    }
    for (const [name, bytes] of Object.entries(tooMuch)) assertRefused(await rawExchange(served.url, bytes), name, 431)
  })

  test('unusual but valid requests are answered once', async () => {
    const project = '{"name":"raw"}'
    const cases: [name: string, bytes: string, status: number][] = [
      ['an absolute address', `GET http://other/healthz HTTP/1.1\r\n${HOST}${CLOSE}\r\n`, 200],
      ['an asterisk', `OPTIONS * HTTP/1.1\r\n${HOST}${CLOSE}\r\n`, 404],
      ['HTTP/1.0', 'GET /healthz HTTP/1.0\r\n\r\n', 200],
      ['blank lines before', `\r\n\r\n${get('Connection: close')}`, 200],
      [
        'a body to a GET',
        `GET /healthz HTTP/1.1\r\n${HOST}${CLOSE}Content-Length: ${HIDDEN.length}\r\n\r\n${HIDDEN}`,
        200,
      ],
      [
        'a body that is not read',
        `POST /v1/projects HTTP/1.1\r\n${HOST}${CLOSE}Content-Length: ${HIDDEN.length}\r\n\r\n${HIDDEN}`,
        401,
      ],
      [
        'an offer of a web socket',
        get('Connection: Upgrade, close', 'Upgrade: websocket', 'Sec-WebSocket-Version: 13'),
        200,
      ],
      [
        'an offer of HTTP/2',
        get('Connection: Upgrade, HTTP2-Settings, close', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABk'),
        200,
      ],
      ['chunks with extensions and trailers', post(CLOSE + CHUNKED, `e;a=b\r\n${project}\r\n0\r\nX-T: 1\r\n\r\n`), 201],
      ['a callback in chunks of one byte', callBack(CLOSE + CHUNKED, `${inBytes('{}')}0\r\n\r\n`), 400],
      ['two hosts', `GET /healthz HTTP/1.1\r\n${HOST}Host: y\r\n${CLOSE}\r\n`, 400],
    ]
    for (const [name, bytes, status] of cases) {
      const answers = await rawExchange(served.url, bytes)
      assert.deepEqual(
        answers.map((answer) => answer.status),
        [status],
        name,
      )
      if (status >= 400) assert.match(answers[0]?.body ?? '', /^\{"error":\{"code":/, name)
    }
  })

  test('a tunnel is refused, and the data in it is never read', async () => {
    const bytes = `CONNECT other:443 HTTP/1.1\r\n${HOST}\r\n${HIDDEN}`
    assertRefused(await rawExchange(served.url, bytes), 'CONNECT', 405)
  })

  test('requests in one packet are answered in order, and garbage after them does not change the answers', async () => {
    const list = `GET /v1/projects HTTP/1.1\r\n${HOST}Authorization: Bearer ${token}\r\n\r\n`
    const good = await rawExchange(served.url, list + get() + list + HIDDEN)
    assert.deepEqual(
      good.map(({ status }) => status),
      [200, 200, 200, 200],
    )
    assert.deepEqual(
      good.map(({ body }) => body.slice(0, 7)),
      ['{"data"', '{"statu', '{"data"', '{"statu'],
    )
    // The server still handles the first request when it reads the garbage.
    const cut = await rawExchange(served.url, `${post('Content-Length: 14\r\n', '{"name":"cut"}')}garbage\r\n\r\n`)
    assert.equal(cut.shift()?.status, 201)
    assertRefused(cut, 'garbage')
  })

  test('every address of a service on localhost refuses bytes that are not HTTP with an envelope', async () => {
    const { url } = await startServe({ settings: { HOST: 'localhost' } })
    const { port } = new URL(url)
    const answered = []
    for (const host of ['127.0.0.1', '[::1]']) {
      const listens = await openSocket(`http://${host}:${port}`).catch(() => null)
      if (listens === null) continue
      listens.write('garbage\r\n\r\n')
      assertRefused(parseAnswers(await readToEnd(listens)), host)
      answered.push(host)
    }
    assert.equal(answered.length, 1)
  })

  test('a request that was refused before its body came is not refused again for that body', async () => {
    const refused = `POST /v1/projects HTTP/1.1\r\n${HOST}${CHUNKED}\r\n`
    const answers = await rawExchange(served.url, `${refused}no chunk at all\r\n`)
    assert.deepEqual(
      answers.map(({ status }) => status),
      [401],
    )
  })

  test('an open stream never gets an answer in its middle', async () => {
    const socket = await openSocket(served.url)
    socket.write(`GET /v1/events HTTP/1.1\r\n${HOST}Authorization: Bearer ${token}\r\n\r\n`)
    await new Promise((resolve) => socket.once('data', resolve))
    socket.write('garbage\r\n\r\n')
    const rest = (await readToEnd(socket)).toString()
    assert.doesNotMatch(rest, /HTTP\/1\.1/)
  })

  test('thousands of idle and half-open connections delay no other client', async () => {
    const idle: Socket[] = []
    after(() => {
      for (const socket of idle) socket.destroy()
    })
    for (let batch = 0; batch < 20; batch++) {
      idle.push(...(await Promise.all(Array.from({ length: 100 }, () => openSocket(served.url)))))
    }
    // Half of them begin something, and do not go on.
    for (const [n, socket] of idle.entries()) {
      if (n % 4 === 1) socket.write(`GET /v1/projects HTTP/1.1\r\nHo`)
      if (n % 4 === 3) socket.write(post('Content-Length: 1000\r\n', '{"name":'))
    }
    for (let n = 0; n < 50; n++) {
      const [alive, listed] = await Promise.all([
        served.request('GET', '/healthz'),
        served.request('GET', '/v1/projects', { token }),
      ])
      assert.deepEqual([alive.status, listed.status], [200, 200])
    }
    assert.equal((await served.request('GET', '/readyz')).status, 200)
    assert.ok(idle.every((socket) => !socket.destroyed))
  })
})

function manyHeaders(): string[] {
  return Array.from({ length: 120 }, (_, n) => `X-${n}: 1`)
}

function inBytes(text: string): string {
  return Array.from(text, (char) => `1\r\n${char}\r\n`).join('')
}
