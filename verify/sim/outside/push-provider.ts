import type { Clock } from '../../../src/core/clock.ts'
import { buildFcmMessage, type FcmRequestBody } from '../../../src/push/fcm/fcm-message.ts'
import { fcm } from '../../../src/push/fcm/fcm-provider.ts'
import type { FcmAnswer } from '../../../src/push/fcm/fcm-transport.ts'
import { judgeAnswer } from '../../../src/push/fcm/fcm-verdict.ts'
import type { PushMessage, PushSender, PushVerdict } from '../../../src/push/push-provider.ts'
import type { Dials } from '../faults/plan.ts'
import type { SimNode } from '../system/node.ts'
import { type Life, never } from '../system/process-instance.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'

const SEND_TIMEOUT_MS = 15_000

export interface Push {
  token: string
  tag: string
  jobId: string
  status: string
  /** Whether the device got it, whatever the sender was told. */
  delivered: boolean
  /** What the service was told; null when it did not live to hear it. */
  verdict: PushVerdict['kind'] | null
}

export interface PushProviderOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  dials: () => Dials
  onViolation: (what: string) => void
}

/** The push provider: it knows which tokens live, and holds every message a device ever got, with its tag. */
export class PushProvider {
  readonly pushes: Push[] = []
  /** Messages that were being sent twice at once. */
  readonly overlaps = new Set<string>()
  /** Messages it will not have, whoever asks how often. */
  readonly rejected = new Set<string>()
  readonly deadTokens = new Set<string>()
  /** Those it has called dead at some time, alive again or not. */
  readonly calledDead = new Set<string>()
  refuses = false
  readonly #options: PushProviderOptions
  readonly #sending = new Map<string, Set<Life>>()
  #messages = 0

  constructor(options: PushProviderOptions) {
    this.#options = options
  }

  /** The real sender's messages and verdicts; what lies between them is this network. */
  senderFor(node: SimNode, life: Life, clock: Clock): PushSender {
    const { time } = this.#options
    return {
      provider: fcm,
      send: async (message) => {
        if (!life.alive) return never()
        node.faults.strike('send')
        if (!life.alive) return never()
        const done = this.#enter(keyOf(message), life)
        await time.sleep(this.#latency())
        const { push, answer } = this.#receive(message, buildFcmMessage(message, clock.now()))
        await time.sleep(answer === 'hang' ? SEND_TIMEOUT_MS : this.#latency())
        done()
        await life.awake()
        node.faults.strike('sent')
        await life.awake()
        const verdict: PushVerdict =
          typeof answer === 'string'
            ? { kind: 'retry', reason: answer, afterMs: null }
            : judgeAnswer(answer, { nowMs: clock.now() })
        push.verdict = verdict.kind
        return verdict
      },
      checkCredentials: async () => null,
      close: async () => {},
    }
  }

  #receive(
    message: PushMessage,
    { message: wire }: FcmRequestBody,
  ): { push: Push; answer: FcmAnswer | 'hang' | 'reset' } {
    const { prng, dials, trace, onViolation } = this.#options
    const tags = new Set([wire.android.notification.tag, wire.webpush.notification.tag])
    if (tags.size > 1) onViolation('one message, two tags')
    const push: Push = {
      token: message.token,
      tag: wire.android.notification.tag,
      jobId: wire.data?.job_id ?? '',
      status: wire.data?.status ?? '',
      delivered: false,
      verdict: null,
    }
    this.pushes.push(push)
    const answer = this.#answer(push, prng.chance(dials().pushes))
    const words = typeof answer === 'string' ? answer : `${answer.status}`
    trace.note('push', `${push.jobId} ${push.status} to ${push.token}: ${words}${push.delivered ? ', delivered' : ''}`)
    return { push, answer }
  }

  #answer(push: Push, troubled: boolean): FcmAnswer | 'hang' | 'reset' {
    const { prng, trace } = this.#options
    if (this.refuses) return error(prng.pick([401, 403, 404]), 'PERMISSION_DENIED', null)
    if (this.deadTokens.has(push.token)) {
      trace.fault('push_dead_token')
      this.calledDead.add(push.token)
      return prng.pick(DEAD_TOKEN)
    }
    if (!troubled) return this.#deliver(push)
    const how = prng.pick(TROUBLES)
    trace.fault(`push_${how}`)
    switch (how) {
      case 'rejected':
        this.rejected.add(`${push.jobId} ${push.status} ${push.token}`)
        return error(401, 'UNAUTHENTICATED', 'THIRD_PARTY_AUTH_ERROR')
      case 'hollow':
        return { status: 200, headers: {}, body: prng.pick(['{}', '<h1>Welcome</h1>']) }
      case 'quota':
        return error(429, 'RESOURCE_EXHAUSTED', 'QUOTA_EXCEEDED', prng.chance(0.5) ? { 'retry-after': '30' } : {})
      case '500':
        return error(500, 'INTERNAL', 'INTERNAL')
      case '502':
        return { status: 502, headers: { 'content-type': 'text/html' }, body: '<h1>Bad Gateway</h1>' }
      case '503':
        return error(503, 'UNAVAILABLE', 'UNAVAILABLE')
      case 'delivered_503':
        this.#deliver(push)
        return error(503, 'UNAVAILABLE', 'UNAVAILABLE')
      case 'hang_delivered':
        this.#deliver(push)
        return 'hang'
      default:
        return how
    }
  }

  #deliver(push: Push): FcmAnswer {
    push.delivered = true
    this.#messages += 1
    return { status: 200, headers: {}, body: JSON.stringify({ name: `projects/sim/messages/${this.#messages}` }) }
  }

  /** Two processes that send the same message at once do not know of each other. */
  #enter(key: string, life: Life): () => void {
    const senders = this.#sending.get(key) ?? new Set<Life>()
    this.#sending.set(key, senders)
    if ([...senders].some((one) => one.alive)) this.overlaps.add(key)
    senders.add(life)
    return () => void senders.delete(life)
  }

  #latency(): number {
    const { prng, dials } = this.#options
    return prng.chance(dials().pushes / 2) ? prng.int(500, 4_000) : prng.int(5, 80)
  }
}

function keyOf({ data, token }: PushMessage): string {
  return `${data.job_id} ${data.status} ${token}`
}

function error(
  status: number,
  word: string,
  errorCode: string | null,
  headers: Record<string, string> = {},
): FcmAnswer {
  const details =
    errorCode === null ? [] : [{ '@type': 'type.googleapis.com/google.firebase.fcm.v1.FcmError', errorCode }]
  return { status, headers, body: JSON.stringify({ error: { code: status, status: word, message: word, details } }) }
}

const TROUBLES = [
  'quota',
  '500',
  '502',
  '503',
  'delivered_503',
  'reset',
  'hang',
  'hang_delivered',
  'hollow',
  'rejected',
] as const

const NOT_A_TOKEN = 'The registration token is not a valid FCM registration token'

const DEAD_TOKEN: readonly FcmAnswer[] = [
  error(404, 'NOT_FOUND', 'UNREGISTERED'),
  error(403, 'PERMISSION_DENIED', 'SENDER_ID_MISMATCH'),
  {
    status: 400,
    headers: {},
    body: JSON.stringify({ error: { code: 400, status: 'INVALID_ARGUMENT', message: NOT_A_TOKEN } }),
  },
]
