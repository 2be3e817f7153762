import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import { DELIVERY_ERRORS } from '../../src/push/outbox/delivery-judge.ts'
import type { PushVerdict } from '../../src/push/push-provider.ts'
import { CHECK_ERRORS } from '../../src/runtime/check-errors.ts'
import { addDevice } from '../support/job-rows.ts'
import { type JobWorld, RUN_MS, startJobWorld } from '../support/job-world.ts'
import { ScriptedSender } from '../support/scripted-sender.ts'
import { forEachService } from '../support/service.ts'

const SECRET = 'canary-5ecret'
const servers: ReturnType<typeof createServer>[] = []
after(() => {
  for (const server of servers) server.close().closeAllConnections()
})

/** Everything that the owner of the job can read, and what streams and lists read it from. */
async function readByUser(world: JobWorld, sub: string, jobId: string): Promise<string> {
  const paths = [`/jobs/${jobId}`, '/jobs', `/jobs/${jobId}/timeline?limit=100`, '/v1/usage', '/readyz']
  const texts = await Promise.all(paths.map(async (path) => (await world.request('GET', path, sub)).text))
  const events = await world.db.query(sql`select data from events where job_id = ${jobId}`)
  const rows = await world.db.query(sql`
    select last_error, error_message from jobs left join job_checks on job_id = id where id = ${jobId}`)
  const timeline = await world.db.query(sql`select detail from job_timeline where job_id = ${jobId}`)
  return [...texts, JSON.stringify([events, rows, timeline])].join('\n')
}

describe('what users read of trouble', () => {
  forEachService((under) => {
    test('an error of the runtime shows users no address, no secret and no words of a library', async () => {
      let answer: RequestListener = (_request, response) => response.end()
      const server = createServer((request, response) => answer(request, response))
      servers.push(server)
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      const { port } = server.address() as AddressInfo
      const url = `http://127.0.0.1:${port}/${SECRET}`
      const world = await startJobWorld(under, { env: { RUNTIME_URL: url, RUNTIME_API_KEY: SECRET } })
      const say = (status: number, type: string, body: string): RequestListener => {
        return (_request, response) => {
          response
            .writeHead(status, { 'content-type': type, location: `http://${SECRET}/`, 'x-secret': SECRET })
            .end(body)
        }
      }
      const answers: [name: string, answer: RequestListener][] = [
        ['a failure that quotes the key', say(500, 'application/json', `{"detail":"key ${SECRET}"}`)],
        ['a refusal of the key', say(403, 'text/plain', `bad key ${SECRET}`)],
        ['a refusal of the start', say(400, 'application/json', `{"detail":"no ${SECRET} at http://10.0.0.7"}`)],
        ['a refusal of the webhook', say(422, 'application/json', `{"detail":"no ${SECRET}"}`)],
        ['a redirect', say(302, 'text/plain', SECRET)],
        ['a page', say(200, 'text/html', `<h1>${SECRET}</h1>`)],
        ['no JSON', say(200, 'application/json', `{"${SECRET}`)],
        ['another document', say(200, 'application/json', `{"status":"${SECRET}"}`)],
        ['a broken connection', (request) => request.socket.destroy()],
        ['no HTTP', (request) => request.socket.end(`${SECRET}\r\n\r\n`)],
      ]
      for (const [name, listener] of answers) {
        answer = listener
        const sub = `user-${randomUUID()}`
        const started = await world.request('POST', '/jobs', sub, { body: { type: 'report', input: {} } })
        assert.equal(started.status, 202, started.text)
        await world.quiet()
        const read = await readByUser(world, sub, started.body.id)
        // Its digits may also be part of a random id.
        assert.doesNotMatch(read, new RegExp(`\\b${port}\\b`), name)
        for (const hidden of [SECRET, '127.0.0.1', '10.0.0.7', 'fetch failed', 'ECONN', 'socket']) {
          assert.ok(!read.includes(hidden), `${name} shows ${hidden}: ${read}`)
        }
        const { last_error } = (await world.stored(started.body.id)).reconcile
        const sentences = Object.values(CHECK_ERRORS).map((sentence) => sentence.replace('{status}', '\\d{3}'))
        if (last_error !== null) assert.match(last_error, new RegExp(`^(?:${sentences.join('|')})$`), name)
        // It answers something again, so that the breaker closes.
        answer = say(200, 'application/json', '[]')
        await world.leap(31_000)
      }
    })

    test("an error of a push shows none of the provider's words, in the timeline and in the notification", async () => {
      const reason = `401 at http://10.0.0.7 with ${SECRET}`
      const verdicts: [PushVerdict, string][] = [
        [{ kind: 'drop', reason, alert: false }, DELIVERY_ERRORS.refused],
        [{ kind: 'drop', reason, alert: true }, DELIVERY_ERRORS.no_platform_key],
        [{ kind: 'retry', reason, afterMs: null }, DELIVERY_ERRORS.unavailable],
        [{ kind: 'halt', reason }, DELIVERY_ERRORS.paused],
      ]
      for (const [verdict, sentence] of verdicts) {
        const world = await startJobWorld(under, { pushSender: new ScriptedSender(() => verdict) })
        await addDevice(world.db, 'ada')
        const { id } = await world.start('report')
        await world.pass(RUN_MS)
        const errors = () => world.db.query<{ last_error: string | null }>(sql`select last_error from deliveries`)
        await world.sweepUntil(async () => (await errors()).some(({ last_error }) => last_error !== null))
        assert.deepEqual(await errors(), [{ last_error: sentence }])
        const [shown] = await world.db.query<{ id: string }>(sql`select id from notifications`)
        const notification = await world.service.request('GET', `/v1/notifications/${shown?.id}`, {
          token: world.admin,
        })
        assert.equal(notification.status, 200, notification.text)
        const read = `${await readByUser(world, 'ada', id)}\n${notification.text}`
        assert.ok(read.includes(sentence), verdict.kind)
        for (const hidden of [SECRET, '10.0.0.7']) assert.ok(!read.includes(hidden), `${verdict.kind}: ${read}`)
      }
    })
  })
})
