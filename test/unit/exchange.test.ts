import assert from 'node:assert/strict'
import { type AddressInfo, createServer } from 'node:net'
import { test } from 'node:test'
import { exchange, hadNoConnection } from '../../src/core/exchange.ts'
import { ManualClock } from '../support/manual-clock.ts'

/** The time limit never ends: the name servers of a machine may take long to answer that they do not know a host. */
const failureOf = (url: string): Promise<unknown> =>
  exchange({ fetch, clock: new ManualClock(), url, timeoutMs: 10_000, maxBytes: 1_000 }).then(
    () => assert.fail('it did not fail'),
    (error: unknown) => error,
  )

/** A server that closes each connection at once, and then does not listen any more. */
async function withClosingServer(use: (port: number) => Promise<void>): Promise<number> {
  const server = createServer((socket) => socket.destroy())
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await use(port)
  await new Promise((resolve) => server.close(resolve))
  return port
}

test('a refused connection and an unknown host mean that the server got nothing; a broken connection does not', async () => {
  const port = await withClosingServer(async (open) => {
    assert.equal(hadNoConnection(await failureOf(`http://127.0.0.1:${open}/`)), false)
  })
  assert.equal(hadNoConnection(await failureOf(`http://127.0.0.1:${port}/`)), true)
  assert.equal(hadNoConnection(await failureOf('http://unknown.invalid/')), true)
})

test('of a server with several addresses, each must have refused the connection', () => {
  const refused = Object.assign(new Error('refused'), { code: 'ECONNREFUSED', syscall: 'connect' })
  const broken = Object.assign(new Error('broken'), { code: 'ETIMEDOUT', syscall: 'read' })
  const wrap = (errors: Error[]) => new Error('fetch failed', { cause: new AggregateError(errors) })
  assert.equal(hadNoConnection(wrap([refused, refused])), true)
  assert.equal(hadNoConnection(wrap([refused, broken])), false)
  assert.equal(hadNoConnection(wrap([])), false)
})

test('the code alone does not tell: a host may become unreachable while a connection is open', () => {
  const failed = (cause: object) => hadNoConnection(new Error('failed', { cause: Object.assign(new Error(), cause) }))
  assert.equal(failed({ code: 'EHOSTUNREACH', syscall: 'connect' }), true)
  assert.equal(failed({ code: 'EHOSTUNREACH', syscall: 'write' }), false)
  assert.equal(failed({ code: 'UND_ERR_CONNECT_TIMEOUT' }), true)
  assert.equal(failed({ code: 'UND_ERR_HEADERS_TIMEOUT' }), false)
  assert.equal(hadNoConnection('no error'), false)
})
