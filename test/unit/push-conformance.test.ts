import { silentLog } from '../../src/core/log.ts'
import { fcm } from '../../src/push/fcm/fcm-provider.ts'
import { createFcmSender } from '../../src/push/fcm/fcm-sender.ts'
import type { PushVerdict } from '../../src/push/push-provider.ts'
import { startPushProvider } from '../../src/sandbox/push-provider/push-provider.ts'
import { ManualClock } from '../support/manual-clock.ts'
import { testPushProvider } from '../support/push-provider-suite.ts'
import { MEMORY_PROVIDER, ScriptedSender } from '../support/scripted-sender.ts'

const FAILING: readonly string[] = [
  'down-1',
  'internal-1',
  'html-1',
  'truncated-1',
  'delivered503-1',
  'goaway-1',
  'rst-1',
]

for (const scheme of ['https', 'http'] as const) {
  testPushProvider(`FCM over ${scheme}`, async () => {
    const clock = new ManualClock()
    const sandbox = await startPushProvider({ clock })
    const { ca, tokenUrl, credentials, url, plainUrl } = sandbox
    const apiUrl = scheme === 'https' ? url : plainUrl
    return {
      provider: fcm,
      connect: (state) => {
        const clientEmail = state === 'accepted' ? credentials.clientEmail : 'another@example.com'
        const settings = { credentials: { ...credentials, clientEmail }, apiUrl, tokenUrl, ca }
        return createFcmSender({ ...settings, clock, log: silentLog })
      },
      tokens: {
        sent: ['phone'],
        disable: ['dead-1', 'bad-1', 'mismatch-1'],
        drop: ['thirdparty-1'],
        retry: ['quota-1', ...FAILING],
      },
      silentToken: 'hang-1',
      arrivals: () => sandbox.arrivals,
      close: () => sandbox.close(),
    }
  })
}

const VERDICTS: Readonly<Record<string, PushVerdict>> = {
  dead: { kind: 'disable', reason: 'unregistered', credentialsFault: null },
  too_big: { kind: 'drop', reason: 'refused', alert: false },
  down: { kind: 'retry', reason: 'unavailable', afterMs: null },
}

testPushProvider('in memory', async () => {
  const senders: ScriptedSender[] = []
  return {
    provider: MEMORY_PROVIDER,
    connect: (credentials) => {
      const sender: ScriptedSender = new ScriptedSender(
        ({ token }) => (token === 'silent' ? new Promise(() => {}) : (VERDICTS[token] ?? sender.sent())),
        MEMORY_PROVIDER,
      )
      sender.credentialsFault = credentials === 'accepted' ? null : 'the credentials are refused'
      senders.push(sender)
      return sender
    },
    tokens: { sent: ['phone'], disable: ['dead'], drop: ['too_big'], retry: ['down'] },
    silentToken: 'silent',
    arrivals: () =>
      senders.flatMap(({ given }) => given.map((message) => ({ ...message, delivered: !message.dryRun }))),
    close: async () => {},
  }
})
