import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { HOMES } from '../support/homes.ts'
import { freshFolder } from '../support/program.ts'
import { type Served, sharedIssuer, startServe, untilAdmitted } from '../support/served.ts'
import { until } from '../support/until.ts'
import { accept, hang, isSignedWith, startReceiver } from '../support/webhook-receiver.ts'

const EVENTS = 3

interface Delivery {
  event_id: string
  state: string
  attempts: number
}

describe('webhooks of a service that is killed', { concurrency: true }, () => {
  for (const { engine, options, make } of HOMES) {
    test(
      `on ${engine}, events that were received and not marked arrive again with the same ids, and are sent`,
      options,
      async (t) => {
        const receiver = await startReceiver()
        const home = await make()
        t.after(() => home.drop?.())
        const token = (await sharedIssuer()).mint({ sub: 'root', scopes: ['admin:*'] })
        const ask = async <Body>(served: Served, method: string, path: string, body?: object) => {
          const answer = await untilAdmitted(() => served.request<Body>(method, path, { token, ...(body && { body }) }))
          assert.ok(answer.status < 300, `${method} ${path}: ${answer.text}`)
          return answer.body
        }
        const ca = join(freshFolder(), 'ca.pem')
        writeFileSync(ca, receiver.certificate.cert)
        const settings = { ...home.settings, EGRESS_ALLOW: '127.0.0.1', NODE_EXTRA_CA_CERTS: ca }
        const start = () => startServe({ folder: home.folder, settings })

        const served = await start()
        const endpoint = { url: receiver.url('/hook'), events: ['project.created'] }
        const { id, secret } = await ask<{ id: string; secret: string }>(
          served,
          'POST',
          '/v1/webhook-endpoints',
          endpoint,
        )
        const deliveries = async (from: Served) =>
          (await ask<{ data: Delivery[] }>(from, 'GET', `/v1/webhook-endpoints/${id}/deliveries`)).data
        receiver.answer('/hook', hang)
        for (let n = 0; n < EVENTS; n++) await ask(served, 'POST', '/v1/projects', { name: `P${n}` })
        const first = await receiver.until('/hook', EVENTS)
        assert.deepEqual(new Set((await deliveries(served)).map(({ state }) => state)), new Set(['pending']))
        await served.program.kill()

        receiver.answer('/hook', accept)
        const again = await start()
        await until(async () => (await deliveries(again)).every(({ state }) => state === 'sent'))
        const sent = await deliveries(again)
        assert.deepEqual(
          sent.map(({ attempts }) => attempts),
          Array(EVENTS).fill(2),
        )
        const second = receiver.at('/hook').slice(EVENTS)
        const textsOf = (webhooks: typeof first) =>
          webhooks.map(({ headers, body }) => `${headers['webhook-id']} ${body}`).sort()
        assert.deepEqual(textsOf(second), textsOf(first))
        assert.deepEqual(
          sent.map(({ event_id }) => event_id).sort(),
          first.map(({ headers }) => headers['webhook-id']).sort(),
        )
        assert.ok(receiver.at('/hook').every((webhook) => isSignedWith(secret, webhook)))
        await again.program.kill()
      },
    )
  }
})
