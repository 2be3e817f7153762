import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { createSocket } from 'node:dgram'
import type { RequestListener } from 'node:http'
import { createServer, type Server } from 'node:https'
import type { AddressInfo } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { promisify } from 'node:util'
import { EgressClient } from '../../src/egress/egress-client.ts'
import { EgressGuard } from '../../src/egress/egress-guard.ts'
import { sentenceOfFailure } from '../../src/egress/egress-port.ts'
import { resolveName } from '../../src/egress/resolve-name.ts'
import { type Certificate, selfSignedCertificate } from '../../src/sandbox/certificate.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { PATIENCE_MS } from '../support/patience.ts'

/** Hosts as a caller may spell them. None of them leads to the public internet. */
const NOT_PUBLIC_HOSTS = [
  ...[
    '127.0.0.1',
    '127.1',
    '127.0.1',
    '2130706433',
    '0x7f000001',
    '0x7f.1',
    '0177.0.0.1',
    '017700000001',
    '127.255.255.254',
  ],
  ...['0', '0.0.0.0', '0.1.2.3', '00.0.0.0', '0x0'],
  ...['10.0.0.1', '10.255.255.255', '167772161', '012.0.0.1', '0xa.0.0.1', '10.1'],
  ...['172.16.0.1', '172.31.255.255', '0xac100001', '192.168.1.1', '192.168.257', '3232235777', '0300.0250.1.1'],
  ...[
    '169.254.169.254',
    '2852039166',
    '0xa9fea9fe',
    '0251.0376.0251.0376',
    '169.254.43518',
    '168.63.129.16',
    '2822734096',
  ],
  ...[
    '100.64.0.1',
    '100.127.255.255',
    '192.0.0.8',
    '192.0.2.1',
    '192.88.99.1',
    '198.18.0.1',
    '198.51.100.7',
    '203.0.113.9',
  ],
  ...['224.0.0.1', '239.255.255.255', '240.0.0.1', '255.255.255.255', '4294967295'],
  ...['①②⑦.0.0.1', '127。0。0。1', '%31%32%37.0.0.1'],
  ...['[::1]', '[0:0:0:0:0:0:0:1]', '[::]', '[::127.0.0.1]', '[::ffff:127.0.0.1]', '[::ffff:7f00:1]', '[::ffff:0:0]'],
  ...['[0:0:0:0:0:ffff:10.0.0.1]', '[::ffff:169.254.169.254]', '[::ffff:a00:0]', '[::ffff:0:127.0.0.1]'],
  ...['[64:ff9b::127.0.0.1]', '[64:ff9b::a9fe:a9fe]', '[64:ff9b::a00:0]', '[64:ff9b:1::808:808]'],
  ...['[2002:7f00:1::]', '[2002:808:808::1]', '[2001::1]', '[2001:0:4136:e378::1]', '[2001:db8::1]', '[3fff::1]'],
  ...['[fc00::1]', '[fd12:3456:789a::1]', '[fe80::1]', '[fec0::1]', '[ff02::1]', '[100::1]', '[5f00::1]', '[4000::1]'],
]

const PUBLIC_HOSTS = [
  ...[
    '8.8.8.8',
    '0x8080808',
    '134744072',
    '172.32.0.1',
    '100.128.0.1',
    '192.0.1.1',
    '198.20.0.1',
    '168.63.129.17',
    '223.255.255.255',
  ],
  ...['[2606:4700::1111]', '[2001:4860:4860::8888]', '[::ffff:8.8.8.8]', '[64:ff9b::8.8.8.8]', 'example.com'],
]

const strict = new EgressGuard({ allow: [], allowHttp: false })

for (const host of NOT_PUBLIC_HOSTS) {
  test(`https://${host} is refused`, () => {
    assert.equal(strict.faultOf(`https://${host}:8443/hook`), 'must have a public address')
  })
}

for (const host of PUBLIC_HOSTS) {
  test(`https://${host} may be tried`, () => assert.equal(strict.faultOf(`https://${host}/hook`), null))
}

test('a URL needs https, and has neither credentials nor a fragment', () => {
  assert.equal(strict.faultOf('http://example.com'), 'must begin with https://')
  assert.equal(strict.faultOf('ftp://example.com'), 'must begin with https://')
  assert.equal(strict.faultOf('javascript:alert(1)'), 'must begin with https://')
  assert.equal(strict.faultOf('//example.com'), 'must be a URL')
  assert.equal(strict.faultOf('https://'), 'must be a URL')
  assert.equal(strict.faultOf('https://[fe80::1%25eth0]/'), 'must be a URL')
  assert.equal(strict.faultOf('https://user@example.com/'), 'must not contain a user name or a password')
  assert.equal(strict.faultOf('https://:secret@example.com/'), 'must not contain a user name or a password')
  assert.equal(strict.faultOf('https://example.com/#part'), 'must not contain a fragment')
  const development = new EgressGuard({ allow: [], allowHttp: true })
  assert.equal(development.faultOf('http://example.com'), null)
  assert.equal(development.faultOf('http://localhost.'), null, 'a name is checked when it is resolved')
})

test('an allowed network is allowed in every spelling, and no other one is', () => {
  const guard = new EgressGuard({ allow: ['10.1.0.0/16', 'fd00::/8', '127.0.0.1'], allowHttp: false })
  for (const host of ['10.1.2.3', '167838211', '[::ffff:10.1.2.3]', '[64:ff9b::10.1.2.3]', '[fd00::1]', '127.1']) {
    assert.equal(guard.faultOf(`https://${host}/`), null, host)
  }
  for (const host of ['10.2.0.1', '[fc00::1]', '127.0.0.2', '[::1]']) {
    assert.equal(guard.faultOf(`https://${host}/`), 'must have a public address', host)
  }
  assert.equal(guard.allows('fe80::1%eth0'), false)
  assert.equal(guard.allows('fd00::1%eth0'), true)
  assert.equal(guard.allows(''), false)
})

const NAMES: Record<string, readonly string[]> = {
  'only-private': ['10.0.0.1'],
  'both-kinds': ['8.8.8.8', '127.0.0.1'],
  'both-families': ['2606:4700::1111', '::1'],
  'mapped-private': ['::ffff:127.0.0.1'],
  'scoped-private': ['fe80::1%eth0'],
  'not-an-address': ['localhost'],
}

function resolveTo(addresses: readonly string[]) {
  return async () => addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 }))
}

describe('resolving a name', () => {
  const server = createSocket('udp4')
  const asked: string[] = []
  const bySystem = async (name: string) => {
    asked.push(name)
    return [{ address: '8.8.8.8', family: 4 }]
  }
  before(async () => {
    // Knows no name, and does not answer about some.
    server.on('message', (query, { port, address }) => {
      if (query.includes('silent')) return
      query.writeUInt16BE(0x8183, 2)
      server.send(query, port, address)
    })
    await new Promise<void>((resolve) => server.bind(0, '127.0.0.1', resolve))
  })
  after(() => server.close())

  test('the system is not asked for a name whose server is silent', async () => {
    const options = { nameServers: [`127.0.0.1:${server.address().port}`], bySystem }
    const silent = Array.from({ length: 10 }, () =>
      resolveName('hooks.silent', { ...options, timeoutMs: 50 }).catch(sentenceOfFailure),
    )
    for (const name of ['localhost', 'app.LOCALHOST.', 'only-in-hosts.example']) {
      assert.equal((await resolveName(name, options))[0]?.address, '8.8.8.8')
    }
    assert.deepEqual([...new Set(await Promise.all(silent))], ['the host name cannot be resolved'])
    assert.deepEqual(asked, ['localhost', 'app.LOCALHOST.', 'only-in-hosts.example'])
  })

  test('localhost is resolved by the system itself', async () => {
    const nameServers = [`127.0.0.1:${server.address().port}`]
    const found = await resolveName('localhost', { nameServers })
    assert.ok(found.every(({ address }) => address === '127.0.0.1' || address === '::1') && found.length > 0)
  })
})

describe('posting', () => {
  let certificate: Certificate
  let server: Server
  let port = 0
  let answer: RequestListener = (_request, response) => response.end('thanks')
  const seen: string[] = []
  const clients: EgressClient[] = []

  before(async () => {
    certificate = await selfSignedCertificate(['localhost', '127.0.0.1', 'rebound'], Date.now())
    server = createServer(certificate, (request, response) => {
      seen.push(`${request.method} ${request.url}`)
      answer(request, response)
    })
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    port = (server.address() as AddressInfo).port
  })
  after(async () => {
    for (const client of clients) client.close()
    server.closeAllConnections()
    await new Promise((resolve) => server.close(resolve))
  })

  function clientOf(guard: EgressGuard, clock = new ManualClock()): EgressClient {
    const client = new EgressClient({ guard, clock, ca: certificate.cert })
    clients.push(client)
    return client
  }
  const loopback = () => new EgressGuard({ allow: ['127.0.0.1'], allowHttp: false })
  const request = (host = '127.0.0.1') => ({ url: `https://${host}:${port}/hook?a=1`, headers: {}, body: '{}' })
  const failureOf = (posting: Promise<unknown>) => posting.then(() => 'answered', sentenceOfFailure)

  for (const [name, addresses] of Object.entries(NAMES)) {
    test(`a name that resolves to ${addresses.join(' and ')} is refused`, async () => {
      const guard = new EgressGuard({ allow: [], allowHttp: false, resolve: resolveTo(addresses) })
      assert.equal(await failureOf(clientOf(guard).post(request(name))), 'the address is not public')
      assert.deepEqual(seen, [])
    })
  }

  test('a name whose addresses change is checked at each connection', async () => {
    let addresses = ['127.0.0.1']
    const resolve = () => resolveTo(addresses)()
    const client = clientOf(new EgressGuard({ allow: ['127.0.0.1'], allowHttp: false, resolve }))
    answer = (_request, response) => response.writeHead(200, { connection: 'close' }).end()
    assert.equal((await client.post(request('rebound'))).status, 200)
    addresses = ['127.0.0.2']
    assert.equal(await failureOf(client.post(request('rebound'))), 'the address is not public')
  })

  test('a socket that is connected to another address than the resolved one is closed before it sends', async () => {
    seen.length = 0
    const guard = new EgressGuard({ allow: [], allowHttp: false, resolve: resolveTo(['8.8.8.8']) })
    // As if the system connected elsewhere: only the check of the connected socket is left.
    const lying = Object.assign(guard, {
      lookup: (_name: string, options: { all?: boolean }, callback: Callback) => {
        if (options.all) callback(null, [{ address: '127.0.0.1', family: 4 }])
        else callback(null, '127.0.0.1', 4)
      },
    })
    assert.equal(await failureOf(clientOf(lying).post(request('rebound'))), 'the address is not public')
    assert.deepEqual(seen, [])
  })

  test('an answer has its status and the first 1 KB, and no redirect is followed', async () => {
    seen.length = 0
    answer = (_request, response) =>
      response.writeHead(307, { location: '/other', 'retry-after': '7' }).end('é'.repeat(1_000))
    const { status, text, retryAfter } = await clientOf(loopback()).post(request())
    assert.deepEqual([status, retryAfter, Buffer.byteLength(text)], [307, '7', 1_024])
    assert.deepEqual(seen, ['POST /hook?a=1'])
  })

  test('an answer without an end is cut at 64 KB, and its status counts', async () => {
    answer = (_request, response) => {
      response.writeHead(200)
      const more = () => response.write('x'.repeat(16_384), () => response.destroyed || setImmediate(more))
      more()
    }
    assert.equal((await clientOf(loopback()).post(request())).status, 200)
  })

  test('an answer that switches protocols, or ends early, is a failure and leaves nothing in progress', {
    timeout: PATIENCE_MS,
  }, async () => {
    const upgrade = 'HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n'
    for (const text of [upgrade, 'HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc']) {
      answer = (incoming) => incoming.socket.end(text)
      const failure = await failureOf(clientOf(loopback()).post(request()))
      assert.equal(failure, 'the connection was closed before the whole answer')
    }
  })

  test('the settings for a proxy in the environment are not obeyed', async () => {
    answer = (_request, response) => response.end()
    const proxy = 'http://127.0.0.1:9'
    // Node reads these settings when a process starts.
    const env = { NODE_USE_ENV_PROXY: '1', HTTPS_PROXY: proxy, https_proxy: proxy, HTTP_PROXY: proxy, ALL_PROXY: proxy }
    const script = new URL('../support/post-through-guard.ts', import.meta.url).pathname
    const input = JSON.stringify({ url: request().url, ca: certificate.cert })
    const { stdout } = await promisify(execFile)(process.execPath, [script, input], { env })
    assert.deepEqual(JSON.parse(stdout), { guarded: 200, unguarded: 'ECONNREFUSED' })
  })

  test('a certificate of an unknown authority is refused', async () => {
    const client = new EgressClient({ guard: loopback(), clock: new ManualClock() })
    clients.push(client)
    assert.equal(await failureOf(client.post(request())), 'the TLS connection failed: is the certificate valid?')
  })

  test('an answer takes at most 15 s, and the next request is not affected', async () => {
    const clock = new ManualClock()
    const client = clientOf(loopback(), clock)
    const arrived = Promise.withResolvers<void>()
    answer = () => arrived.resolve()
    const late = failureOf(client.post(request()))
    await arrived.promise
    await clock.advance(15_000)
    assert.equal(await late, 'no answer within 15 s')
    answer = (_request, response) => response.end()
    assert.equal((await client.post(request())).status, 200)
  })

  test('a request on a kept connection that was closed is repeated once, on a new connection', async () => {
    const client = clientOf(loopback())
    const kept = new Set<object>()
    const both = Promise.withResolvers<void>()
    answer = async (incoming, response) => {
      if (kept.add(incoming.socket).size === 2) both.resolve()
      await both.promise
      response.end()
    }
    await Promise.all([client.post(request()), client.post(request())])
    answer = (incoming, response) => {
      if (kept.has(incoming.socket)) incoming.socket.destroy()
      else response.end()
    }
    assert.equal((await client.post(request())).status, 200)
    answer = (incoming) => incoming.socket.destroy()
    seen.length = 0
    assert.equal(await failureOf(client.post(request())), 'the connection failed')
    assert.equal(seen.length, 2)
  })

  test('ten connections to a host are all kept for the next ten requests', async () => {
    const client = clientOf(loopback())
    const sockets = new Set<object>()
    let held: (() => void)[] = []
    answer = (incoming, response) => {
      sockets.add(incoming.socket)
      held.push(() => response.end())
      if (held.length < 10) return
      for (const end of held) end()
      held = []
    }
    const tenAtOnce = () => Promise.all(Array.from({ length: 10 }, () => client.post(request())))
    await tenAtOnce()
    await tenAtOnce()
    assert.equal(sockets.size, 10)
  })

  test('a connection takes at most 5 s', async () => {
    const clock = new ManualClock()
    const never = new Promise<never>(() => {})
    const guard = new EgressGuard({ allow: [], allowHttp: false, resolve: () => never })
    const late = failureOf(clientOf(guard, clock).post(request('slow-name')))
    await clock.untilSleeping()
    await clock.advance(5_000)
    assert.equal(await late, 'no connection within 5 s')
  })
})

type Callback = (error: Error | null, address: string | { address: string; family: number }[], family?: number) => void
