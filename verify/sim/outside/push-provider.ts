import type { Clock } from '../../../src/core/clock.ts'
import { buildFcmMessage, type FcmRequestBody } from '../../../src/push/fcm/fcm-message.ts'
import { fcm } from '../../../src/push/fcm/fcm-provider.ts'
import type { FcmAnswer } from '../../../src/push/fcm/fcm-transport.ts'
import { judgeAnswer } from '../../../src/push/fcm/fcm-verdict.ts'
import type { PushMessage, PushSender, PushVerdict } from '../../../src/push/push-provider.ts'
import { type HttpResponse, json } from '../../../src/sandbox/http-response.ts'
import { failed, outcomeOf } from '../../../src/sandbox/push-provider/answers.ts'
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

  /** As the sandbox answers for a registration token with this prefix. */
  #answerAs(prefix: string, push: Push): FcmAnswer | 'hang' | 'reset' {
    const accepted = json(200, { name: `projects/sim/messages/${this.pushes.length}` })
    const retryAfter: Record<string, string> = this.#options.prng.chance(0.5) ? { 'retry-after': '30' } : {}
    const { delivered, way, response } = outcomeOf(prefix, { accepted, retryAfter })
    push.delivered = delivered
    if (way === 'hang') return 'hang'
    return way === 'answer' ? toAnswer(response) : 'reset'
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

function toAnswer({ status, headers = {}, body }: HttpResponse): FcmAnswer {
  return { status, headers, body }
}

/** The last two are of the simulation alone, the others are prefixes of the sandbox. */
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
