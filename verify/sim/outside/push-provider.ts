import type { Clock } from '../../../src/core/clock.ts'
import { buildFcmMessage, type FcmRequestBody } from '../../../src/push/fcm/fcm-message.ts'
import { fcm } from '../../../src/push/fcm/fcm-provider.ts'
import type { FcmAnswer } from '../../../src/push/fcm/fcm-transport.ts'
import { judgeAnswer } from '../../../src/push/fcm/fcm-verdict.ts'
import type { PushMessage, PushSender, PushVerdict } from '../../../src/push/push-provider.ts'
import { type HttpResponse, json } from '../../../src/sandbox/http-response.ts'
import { failed, outcomeOf } from '../../../src/sandbox/push-provider/answers.ts'
import type { FaultRates } from '../faults/plan.ts'
import type { SimNode } from '../system/node.ts'
import { never, type ProcessInstance } from '../system/process-instance.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'

const SEND_TIMEOUT_MS = 15_000

export interface Push {
  token: string
  tag: string
  jobId: string
  status: string
  /** Whether the device got the message, independent of the response. */
  delivered: boolean
  /** The service's verdict on the response; null if it crashed before. */
  verdict: PushVerdict['kind'] | null
}

export interface SimPushProviderOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  rates: () => FaultRates
  onViolation: (what: string) => void
}

/** The push provider: knows which tokens are dead, and keeps every message it received. */
export class SimPushProvider {
  readonly pushes: Push[] = []
  /** Messages that two processes sent at the same time. */
  readonly overlaps = new Set<string>()
  /** Messages that it refuses for ever. */
  readonly rejected = new Set<string>()
  readonly deadTokens = new Set<string>()
  /** Tokens that it has reported dead at some time. */
  readonly calledDead = new Set<string>()
  refuses = false
  readonly #options: SimPushProviderOptions
  readonly #sending = new Map<string, Set<ProcessInstance>>()

  constructor(options: SimPushProviderOptions) {
    this.#options = options
  }

  /** Builds messages and judges responses as the real sender does; the network between them is simulated. */
  senderFor(node: SimNode, instance: ProcessInstance, clock: Clock): PushSender {
    const { time } = this.#options
    return {
      provider: fcm,
      send: async (message) => {
        if (!instance.alive) return never()
        node.faults.trigger('send')
        if (!instance.alive) return never()
        const done = this.#enter(keyOf(message), instance)
        await time.sleep(this.#latency())
        const { push, answer } = this.#receive(message, buildFcmMessage(message, clock.now()))
        await time.sleep(answer === 'hang' ? SEND_TIMEOUT_MS : this.#latency())
        done()
        await instance.untilAwake()
        node.faults.trigger('sent')
        await instance.untilAwake()
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
    const { prng, rates, trace, onViolation } = this.#options
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
    const answer = this.#answer(push, prng.chance(rates().pushes))
    const words = typeof answer === 'string' ? answer : `${answer.status}`
    trace.note('push', `${push.jobId} ${push.status} to ${push.token}: ${words}${push.delivered ? ', delivered' : ''}`)
    return { push, answer }
  }

  #answer(push: Push, faulty: boolean): FcmAnswer | 'hang' | 'reset' {
    const { prng, trace } = this.#options
    if (this.refuses) return toAnswer(failed(prng.pick(REFUSALS)))
    if (this.deadTokens.has(push.token)) {
      trace.fault('push_dead_token')
      this.calledDead.add(push.token)
      return this.#answerAs(prng.pick(DEAD_DEVICES), push)
    }
    if (!faulty) return this.#answerAs('', push)
    const fault = prng.pick(MESSAGE_FAULTS)
    trace.fault(`push_${fault}`)
    if (fault === 'hollow') return { status: 200, headers: {}, body: prng.pick(['{}', '<h1>Welcome</h1>']) }
    if (fault === 'thirdparty') this.rejected.add(`${push.jobId} ${push.status} ${push.token}`)
    if (fault !== 'hang_delivered') return this.#answerAs(`${fault}-`, push)
    push.delivered = true
    return 'hang'
  }

  /** The answer of the sandbox for a registration token with this prefix. */
  #answerAs(prefix: string, push: Push): FcmAnswer | 'hang' | 'reset' {
    const accepted = json(200, { name: `projects/sim/messages/${this.pushes.length}` })
    const retryAfter: Record<string, string> = this.#options.prng.chance(0.5) ? { 'retry-after': '30' } : {}
    const { delivered, way, response } = outcomeOf(prefix, { accepted, retryAfter })
    push.delivered = delivered
    if (way === 'hang') return 'hang'
    return way === 'answer' ? toAnswer(response) : 'reset'
  }

  /** Notes when another process is sending the same message. */
  #enter(key: string, instance: ProcessInstance): () => void {
    const senders = this.#sending.get(key) ?? new Set<ProcessInstance>()
    this.#sending.set(key, senders)
    if ([...senders].some((one) => one.alive)) this.overlaps.add(key)
    senders.add(instance)
    return () => void senders.delete(instance)
  }

  #latency(): number {
    const { prng, rates } = this.#options
    return prng.chance(rates().pushes / 2) ? prng.int(500, 4_000) : prng.int(5, 80)
  }
}

function keyOf({ data, token }: PushMessage): string {
  return `${data.job_id} ${data.status} ${token}`
}

function toAnswer({ status, headers = {}, body }: HttpResponse): FcmAnswer {
  return { status, headers, body }
}

/** The last two exist only here; the others are prefixes of the sandbox's tokens. */
const MESSAGE_FAULTS = [
  'quota',
  'internal',
  'html',
  'down',
  'delivered503',
  'rst',
  'hang',
  'thirdparty',
  'hang_delivered',
  'hollow',
] as const
const DEAD_DEVICES = ['dead-', 'mismatch-', 'bad-'] as const
const REFUSALS = ['unauthenticated', 'permission', 'wrong_project'] as const
