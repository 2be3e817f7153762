import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { CommandLineKey } from '../../src/auth/command-line-key.ts'
import { systemRandom } from '../../src/core/random.ts'
import { assertError } from '../support/assert-error.ts'
import { forEachService } from '../support/service.ts'

const REFUSED = { status: 401, code: 'unauthorized', message: 'Invalid or expired API key' } as const
const newKey = () => new CommandLineKey({ random: systemRandom, user: 'operator' })

describe('the key of the command line', () => {
  forEachService((under) => {
    test('the key of the start has every scope, and the audit trail names the command line and its user', async () => {
      const commandLineKey = newKey()
      const service = await under.start({ commandLineKey })
      const key = commandLineKey.text
      const block = await service.request('POST', '/v1/users/eve/block', { key })
      assert.equal(block.status, 200, block.text)
      const body = { name: 'robot', scopes: ['read:projects'] }
      const made = await service.request<{ created_by: string }>('POST', '/v1/service-accounts', { key, body })
      assert.equal(made.body.created_by, 'command_line')
      const listed = await service.request<{ data: { actor: object; action: string; address: string }[] }>(
        'GET',
        '/v1/audit',
        { key },
      )
      const actor = { kind: 'command_line', id: 'operator' }
      assert.deepEqual(
        listed.body.data.map((entry) => [entry.action, entry.actor, entry.address]),
        [
          ['service_account.created', actor, '127.0.0.1'],
          ['user.blocked', actor, '127.0.0.1'],
        ],
      )
      type Started = { created_by: string; created_by_kind: string }
      const bulk = { action: 'check', ids: ['job_none'] }
      const operation = await service.request<Started>('POST', '/v1/operations', { key, body: bulk })
      assert.deepEqual([operation.body.created_by, operation.body.created_by_kind], ['operator', 'command_line'])
    })

    test('a service refuses the key of another start, and that of a service without one', async () => {
      const [service, without] = [await under.start({ commandLineKey: newKey() }), await under.shared()]
      const { text: key } = newKey()
      for (const one of [service, without]) {
        assertError(one, await one.request('GET', '/v1/job-types', { key }), REFUSED)
      }
    })

    test('the key is refused when a proxy forwarded the request, also a trusted one', async () => {
      const commandLineKey = newKey()
      const key = commandLineKey.text
      const service = await under.start({ commandLineKey, env: { TRUST_PROXY: '127.0.0.1' } })
      const forwarded: Record<string, string>[] = [
        { 'x-forwarded-for': '127.0.0.1' },
        { 'x-forwarded-for': '203.0.113.7' },
        { 'X-Forwarded-Proto': 'https' },
        { 'x-original-forwarded-for': '127.0.0.1' },
        { forwarded: 'for=127.0.0.1' },
        { 'x-real-ip': '127.0.0.1' },
        { 'true-client-ip': '127.0.0.1' },
        { 'cf-connecting-ip': '127.0.0.1' },
        { 'x-azure-clientip': '127.0.0.1' },
        { via: '1.1 proxy' },
        { host: 'api.example.com' },
      ]
      for (const headers of forwarded) {
        const token = service.tokenFor()
        for (const credential of [{ key }, { key, token }]) {
          const answer = await service.request('GET', '/v1/job-types', { ...credential, headers })
          assertError(service, answer, REFUSED)
        }
      }
      for (const headers of [{}, { host: 'localhost' }, { host: '[::1]:8080' }]) {
        assert.equal((await service.request('GET', '/v1/job-types', { key, headers })).status, 200)
      }
    })

    test('the key is refused from an address that is not loopback', async () => {
      const commandLineKey = newKey()
      const service = await under.start({ commandLineKey })
      const statusFrom = async (remoteAddress: string) => {
        const headers = { 'x-api-key': commandLineKey.text, host: '127.0.0.1' }
        return (await service.app.inject({ url: '/v1/job-types', headers, remoteAddress })).statusCode
      }
      for (const address of ['127.0.0.1', '127.8.8.8', '::1', '::ffff:127.0.0.1']) {
        assert.equal(await statusFrom(address), 200, address)
      }
      for (const address of [
        '192.168.0.2',
        '10.0.0.1',
        '203.0.113.7',
        'fe80::1',
        '::ffff:10.0.0.1',
        '::',
        '1270.0.0.1',
      ]) {
        assert.equal(await statusFrom(address), 401, address)
      }
    })
  })
})
