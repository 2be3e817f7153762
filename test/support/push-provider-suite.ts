import assert from 'node:assert/strict'
import { after, describe, test } from 'node:test'
import {
  PLATFORMS,
  type PushMessage,
  type PushProvider,
  type PushSender,
  type PushVerdict,
} from '../../src/push/push-provider.ts'

type Kind = PushVerdict['kind']

/** One provider, set up so that the suite can cause every verdict and see what arrives. */
export interface ProviderUnderTest {
  provider: PushProvider
  connect(credentials: 'accepted' | 'refused'): PushSender
  /** Device tokens by the verdict that they cause. */
  tokens: Readonly<Record<Exclude<Kind, 'halt'>, readonly string[]>>
  /** The provider never answers a message to this token. */
  silentToken: string
  arrivals(): readonly { token: string; tag: string | null; delivered: boolean }[]
  close(): Promise<void>
}

const NEVER = new AbortController().signal
const KINDS: readonly Kind[] = ['sent', 'disable', 'drop', 'retry', 'halt']

/** Registers the tests that every push provider must pass. */
export function testPushProvider(name: string, start: () => Promise<ProviderUnderTest>): void {
  describe(`the push provider ${name}`, () => {
    let started: Promise<ProviderUnderTest> | undefined
    const senders: PushSender[] = []
    after(async () => {
      for (const sender of senders) await sender.close()
      await (await started)?.close()
    })

    async function connect(credentials: 'accepted' | 'refused' = 'accepted') {
      started ??= start()
      const underTest = await started
      const sender = underTest.connect(credentials)
      senders.push(sender)
      const arrivedAt = (token: string) => underTest.arrivals().filter((arrival) => arrival.token === token)
      return { ...underTest, sender, arrivedAt }
    }

    test('the provider states its limits, and its sender names the provider', async () => {
      const { provider, sender } = await connect()
      assert.equal(sender.provider, provider)
      assert.match(provider.name, /^[a-z][a-z0-9_]*$/)
      const { payloadBytes, tokenBytes, ttlSeconds, idleDeviceMs } = provider.limits
      for (const limit of [payloadBytes, tokenBytes, ttlSeconds, ...Object.values(idleDeviceMs)]) {
        assert.ok(Number.isSafeInteger(limit) && limit > 0)
      }
      for (const platform of Object.keys(idleDeviceMs)) assert.ok(PLATFORMS.some((known) => known === platform))
    })

    test('content of exactly the largest payload is accepted and sent', async () => {
      const { provider, sender } = await connect()
      const message = largest(provider)
      assert.equal(provider.payloadBytesOf(message), provider.limits.payloadBytes)
      assert.equal(provider.validate(message), null)
      assert.equal((await sender.send(message, NEVER)).kind, 'sent')
    })

    test('content over the largest payload is refused', async () => {
      const { provider } = await connect()
      const { body, ...message } = largest(provider)
      const fault = provider.validate({ ...message, body: `${body}x` })
      assert.equal(fault?.path, '')
      assert.match(fault.problem, new RegExp(`\\b${provider.limits.payloadBytes}\\b`))
    })

    test('the longest token is accepted, and a message that asks for more than the longest time to live', async () => {
      const { provider, sender } = await connect()
      const { tokenBytes, ttlSeconds } = provider.limits
      const long = await sender.send(messageTo('t'.repeat(tokenBytes)), NEVER)
      const old = await sender.send(messageTo('phone-old', { ttlSeconds: ttlSeconds + 1 }), NEVER)
      assert.deepEqual([long.kind, old.kind], ['sent', 'sent'])
    })

    test('each answer of the provider gets its verdict, with a reason that does not show the token', async () => {
      const { tokens, sender } = await connect()
      for (const [kind, those] of Object.entries(tokens)) {
        assert.ok(those.length > 0, kind)
        for (const token of those) {
          const verdict = await sender.send(messageTo(token), NEVER)
          assert.equal(verdict.kind, kind, token)
          assertWellFormed(verdict, token)
        }
      }
    })

    test('two messages get two ids', async () => {
      const { sender } = await connect()
      const [one, two] = [await sender.send(messageTo('phone'), NEVER), await sender.send(messageTo('phone'), NEVER)]
      assert.ok(one.kind === 'sent' && two.kind === 'sent' && one.messageId !== two.messageId)
    })

    test('the sender never rejects, whatever the message holds', async () => {
      const { sender } = await connect()
      const odd: Partial<PushMessage>[] = [
        { token: '' },
        { token: '\u0000\ud800' },
        { title: '\ud800', body: '\u0000' },
        { data: { '': '', a: '\udfff' } },
        { data: { a: 'x'.repeat(100_000) } },
        { link: 'no URL' },
        { tag: '' },
        { ttlSeconds: -1 },
        { ttlSeconds: Number.NaN },
      ]
      for (const more of odd) {
        const verdict = await sender.send(messageTo('phone', more), NEVER)
        assert.ok(KINDS.includes(verdict.kind), JSON.stringify(more))
      }
    })

    test('a dry run is checked and not delivered', async () => {
      const { sender, arrivedAt } = await connect()
      const verdict = await sender.send(messageTo('phone-dry', { dryRun: true }), NEVER)
      assert.equal(verdict.kind, 'sent')
      assert.equal((await sender.send(messageTo('phone-dry'), NEVER)).kind, 'sent')
      assert.equal(arrivedAt('phone-dry').filter(({ delivered }) => delivered).length, 1)
    })

    test('a repeated message has the same tag, and another message has another', async () => {
      const { sender, arrivedAt } = await connect()
      for (const tag of ['job_1', 'job_1', 'job_2']) await sender.send(messageTo('phone-tag', { tag }), NEVER)
      const tags = arrivedAt('phone-tag').map(({ tag }) => tag)
      assert.equal(tags.length, 3)
      assert.equal(tags[0], tags[1])
      assert.notEqual(tags[1], tags[2])
    })

    test('accepted credentials are checked without sending a message', async () => {
      const { sender, arrivals } = await connect()
      const before = arrivals().length
      assert.equal(await sender.checkCredentials(), null)
      assert.equal(arrivals().length, before)
    })

    test('refused credentials are reported with the reason, and halt every message for that reason', async () => {
      const { sender, arrivedAt } = await connect('refused')
      const fault = await sender.checkCredentials()
      assert.ok(fault !== null && fault !== '')
      const verdict = await sender.send(messageTo('phone-refused'), NEVER)
      assert.deepEqual(verdict, { kind: 'halt', reason: fault })
      assert.deepEqual(arrivedAt('phone-refused'), [])
    })

    test('an aborted message ends with a retry, and a message that was aborted before is not sent', async () => {
      const { sender, silentToken, arrivedAt } = await connect()
      const stop = new AbortController()
      const before = arrivedAt(silentToken).length
      const sending = sender.send(messageTo(silentToken), stop.signal)
      while (arrivedAt(silentToken).length === before) await new Promise(setImmediate)
      stop.abort()
      assert.equal((await sending).kind, 'retry')
      assert.equal((await sender.send(messageTo('phone-aborted'), stop.signal)).kind, 'retry')
      assert.deepEqual(arrivedAt('phone-aborted'), [])
    })

    test('messages in flight end with a retry when the sender closes, and so do all later ones', async () => {
      const { sender, silentToken, arrivedAt } = await connect()
      const before = arrivedAt(silentToken).length
      const sending = [sender.send(messageTo(silentToken), NEVER), sender.send(messageTo(silentToken), NEVER)]
      while (arrivedAt(silentToken).length < before + 2) await new Promise(setImmediate)
      await sender.close()
      for (const verdict of await Promise.all(sending)) assert.equal(verdict.kind, 'retry')
      assert.equal((await sender.send(messageTo('phone-late'), NEVER)).kind, 'retry')
      assert.deepEqual(arrivedAt('phone-late'), [])
      await sender.close()
    })
  })
}

function messageTo(token: string, more: Partial<PushMessage> = {}): PushMessage {
  const content = { title: 'Report ready', body: 'Look.', data: { job_id: 'job_1' }, tag: 'job_1', link: null }
  return { token, ...content, priority: 'high', ttlSeconds: 3_600, dryRun: false, ...more }
}

function largest(provider: PushProvider): PushMessage {
  const message = messageTo('phone-large', { body: '' })
  return { ...message, body: 'x'.repeat(provider.limits.payloadBytes - provider.payloadBytesOf(message)) }
}

function assertWellFormed(verdict: PushVerdict, token: string): void {
  if (verdict.kind === 'sent') return assert.ok(verdict.messageId !== '')
  assert.ok(verdict.reason !== '' && !verdict.reason.includes(token))
  if (verdict.kind === 'retry') assert.ok(verdict.afterMs === null || verdict.afterMs >= 0)
  if (verdict.kind === 'disable') assert.notEqual(verdict.credentialsFault, '')
}
