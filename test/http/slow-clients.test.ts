import assert from 'node:assert/strict'
import type { Socket } from 'node:net'
import { describe, test } from 'node:test'
import type { App } from '../../src/http/app-instance.ts'
import { openSocket, parseAnswers, readToEnd } from '../support/raw-exchange.ts'
import { forEachVariant, type TestService } from '../support/service.ts'

const CONNECTIONS = 40
/** As short as a test can wait; the real ones are many seconds. */
const IMPATIENT = { headersTimeout: 150, requestTimeout: 150, connectionsCheckingInterval: 20 }

describe('slow clients', () => {
  forEachVariant((under) => {
    const start = () => under.start({ extend: (app: App) => void Object.assign(app.server, IMPATIENT) })
    const head = (service: TestService, ...lines: string[]) => {
      const token = service.tokenFor({ scopes: ['admin:*'] })
      return ['POST /v1/projects HTTP/1.1', 'Host: x', `Authorization: Bearer ${token}`, ...lines, '', ''].join('\r\n')
    }

    /** One byte after the other, for as long as the server takes them; resolves with what it said, and whether it listened. */
    const trickle = async (service: TestService, start: string) => {
      const good = service.tokenFor({ sub: 'a good client', scopes: ['admin:*'] })
      // The first request of a service takes longer than those after it, on a busy machine longer than these timeouts.
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

    test('that drip their headers are told once that it took too long, and cut', async () => {
      assertTimedOut(await trickle(await start(), 'GET /v1/projects HTTP/1.1\r\nHost: x\r\nX-Drip: '))
    })

    test('that drip their body are told once that it took too long, and cut', async () => {
      const service = await start()
      assertTimedOut(await trickle(service, head(service, 'Content-Type: application/json', 'Content-Length: 100000')))
    })

    test('that drip their chunks are told once that it took too long, and cut', async () => {
      const service = await start()
      const chunked = head(service, 'Content-Type: application/json', 'Transfer-Encoding: chunked')
      assertTimedOut(await trickle(service, `${chunked}ffff\r\n`))
    })

    test('that were refused before their body came are cut without a second word', async () => {
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
