import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, describe, test } from 'node:test'
import { startJobWorld } from '../support/job-world.ts'
import { onOneService } from '../support/service.ts'

describe('another server at the address of the runtime', () => {
  onOneService((under) => {
    let answer: RequestListener = () => {}
    const server = createServer((request, response) => answer(request, response))
    after(() => {
      server.closeAllConnections()
      server.close()
    })

    test('the answers of another server at the runtime’s address change no job, neither at its start nor on a read', async () => {
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
      const page = (status: number, type: string, body: string): RequestListener => {
        return (_request, response) => response.writeHead(status, { 'content-type': type }).end(body)
      }
      const others: [name: string, answer: RequestListener, error: RegExp][] = [
        ['a page', page(200, 'text/html', '<h1>Welcome</h1>'), /with a web page$/],
        ['a page of not found', page(404, 'text/html; charset=utf-8', 'no such run or thread'), /404/],
        ['a bare not found', page(404, 'text/plain', 'not found'), /404/],
        ['text', page(200, 'text/plain', 'hello'), /not JSON|answered/],
        ['half a document', page(200, 'application/json', '{"run_id":'), /not JSON/],
        ['another document', page(200, 'application/json', '{"hello":"world"}'), /without its ids|not a/],
        ['a list', page(200, 'application/json', '[]'), /not a/],
        ['a redirect', page(302, 'text/plain', ''), /302/],
        ['a teapot', page(418, 'application/json', '{"run_id":1}'), /418/],
        ['odd types', page(200, 'application/json', '{"run_id":1e400,"thread_id":[],"status":{}}'), /without its ids/],
        ['bytes that are no text', page(200, 'application/json', Buffer.from([0xff]).toString('latin1')), /./],
        ['no server', (request) => request.socket.destroy(), /cannot be reached/],
      ]
      for (const [name, listener, error] of others) {
        // A world of its own for each: failures in a row open the breaker.
        const world = await startJobWorld(under, { env: { RUNTIME_URL: url } })
        answer = listener
        const ids = { thread_id: randomUUID(), run_id: randomUUID() }
        const { body } = await world.callback('report', { ...ids, status: 'thinking' })
        await world.quiet()
        const job = await world.get(body.job_id)
        assert.match(job.status, /^(?:processing|generating)$/, `${name}: ${JSON.stringify(job.error)}`)
        assert.match(String(job.reconcile.last_error), error, name)
        if (name.includes('page') || name === 'no server') {
          const own = await world.start('report')
          assert.equal((await world.stored(own.id)).status, 'processing', name)
        }
      }
    })
  })
})
