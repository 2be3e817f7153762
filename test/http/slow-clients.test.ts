import assert from 'node:assert/strict'
import type { Socket } from 'node:net'
import { describe, test } from 'node:test'
import type { App } from '../../src/http/app-instance.ts'
import { openSocket, parseAnswers, readToEnd } from '../support/raw-exchange.ts'
import { onOneService, type TestService } from '../support/service.ts'

const CONNECTIONS = 40
/** The real ones are many seconds. On a busy machine the good client, too, takes a while between connecting and sending. */
const IMPATIENT = { headersTimeout: 1_500, requestTimeout: 1_500, connectionsCheckingInterval: 50 }

describe('slow clients', () => {
  onOneService((under) => {
    const start = () => under.start({ extend: (app: App) => void Object.assign(app.server, IMPATIENT) })
    const head = (service: TestService, ...lines: string[]) => {
      const token = service.tokenFor({ scopes: ['admin:*'] })
      return ['POST /v1/projects HTTP/1.1', 'Host: x', `Authorization: Bearer ${token}`, ...lines, '', ''].join('\r\n')
    }

    /**
     * Sends one byte at a time while the server accepts them. Resolves with the server's answer and whether the server
     * stopped reading.
     */
    const trickle = async (service: TestService, start: string) => {
      const good = service.tokenFor({ sub: 'a good client', scopes: ['admin:*'] })
      // The first request of a service is slow. On a busy machine it takes longer than these timeouts.
      await service.request('GET', '/v1/projects', { token: good })
      const sockets = await Promise.all(Array.from({ length: CONNECTIONS }, () => openSocket(service.url)))
      for (const socket of sockets) socket.write(start)
      const ended = sockets.map(async (socket) => parseAnswers(await readToEnd(socket)))
      const dripping = drip(sockets)
      let answered = 0
      while (sockets.some((socket) => !socket.destroyed)) {
        const { status } = await service.request('GET', '/v1/projects', { token: good })
        assert.equal(status, 200)
        answered += 1
      }
      await dripping
      assert.ok(answered > 1, 'the good client was answered meanwhile')
      return Promise.all(ended)
    }

    const assertTimedOut = (answers: Awaited<ReturnType<typeof trickle>>) => {
      for (const one of answers) {
        assert.deepEqual(
          one.map(({ status }) => status),
          [408],
        )
        assert.match(one[0]?.body ?? '', /"request_timeout"/)
        assert.equal(one[0]?.headers.connection, 'close')
      }
    }

    test('clients that send their headers too slowly get one 408 and are disconnected', async () => {
      assertTimedOut(await trickle(await start(), 'GET /v1/projects HTTP/1.1\r\nHost: x\r\nX-Drip: '))
    })

    test('clients that send their body too slowly get one 408 and are disconnected', async () => {
      const service = await start()
      assertTimedOut(await trickle(service, head(service, 'Content-Type: application/json', 'Content-Length: 100000')))
    })

    test('clients that send their chunks too slowly get one 408 and are disconnected', async () => {
      const service = await start()
      const chunked = head(service, 'Content-Type: application/json', 'Transfer-Encoding: chunked')
      assertTimedOut(await trickle(service, `${chunked}ffff\r\n`))
    })

    test('clients that were refused before their body arrived are disconnected without a second answer', async () => {
      const refused = 'POST /v1/projects HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n'
      for (const answers of await trickle(await start(), refused)) {
        assert.deepEqual(
          answers.map(({ status }) => status),
          [401],
        )
      }
    })
  })
})

async function drip(sockets: readonly Socket[]): Promise<void> {
  while (sockets.some((socket) => !socket.destroyed)) {
    for (const socket of sockets) if (socket.writable) socket.write('a')
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}
