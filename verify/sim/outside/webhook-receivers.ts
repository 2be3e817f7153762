import {
  type EgressAnswer,
  EgressError,
  type EgressPoster,
  type EgressRequest,
} from '../../../src/egress/egress-port.ts'
import type { SimNode } from '../system/node.ts'
import { never, type ProcessInstance } from '../system/process-instance.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'

const SEND_TIMEOUT_MS = 15_000
const SHARE_OF_SEEDS = 0.5
const JOB_EVENTS = ['job.created', 'job.updated', 'job.completed', 'job.failed', 'job.cancelled', 'job.awaiting_input']

/** `loses`: takes the message, and breaks the connection. `gone`: answers 410, which disables the endpoint. */
type Mode = 'works' | 'fails' | 'hangs' | 'loses' | 'gone'

/** A message as it arrived. */
export interface Message {
  /** The name of the receiver. */
  receiver: string
  headers: Readonly<Record<string, string>>
  body: string
  atMs: number
  mode: Mode
}

/** A backend with one endpoint. */
export interface Receiver {
  name: string
  url: string
  events: readonly string[]
  types: readonly string[] | null
  /** How it behaves while there are faults: each mode holds from its time on. */
  modes: readonly { atMs: number; mode: Mode }[]
  /** It answers nothing in the minutes after the faults, in which the other receivers must not be late. */
  hangsWhenCalm: boolean
}

interface WebhookReceiversOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  faultsMs: number
  /** calm: after the faults, while the nodes run at full pace. */
  phase: () => 'faults' | 'calm' | 'later'
}

/** The backends that get webhooks: none in half of the seeds, up to three in the others. They keep every message. */
export class WebhookReceivers {
  readonly all: readonly Receiver[]
  readonly messages: Message[] = []
  /** Messages that two processes sent at the same time. */
  readonly overlaps = new Set<string>()
  readonly #options: WebhookReceiversOptions
  readonly #sending = new Map<string, Set<ProcessInstance>>()

  constructor(options: WebhookReceiversOptions) {
    this.#options = options
    const { prng } = options
    const count = prng.chance(SHARE_OF_SEEDS) ? prng.int(1, 3) : 0
    this.all = Array.from({ length: count }, (_, index) => this.#plan(index, count))
  }

  #plan(index: number, count: number): Receiver {
    const { time, prng, faultsMs } = this.#options
    const name = `hook-${index}`
    const times = Array.from({ length: prng.int(0, 4) }, () => time.now + prng.int(0, faultsMs)).sort((a, b) => a - b)
    return {
      name,
      url: `https://${name}.sim/events`,
      events: prng.pick([JOB_EVENTS, JOB_EVENTS.slice(2, 5), [...JOB_EVENTS.slice(0, 3), 'webhook.disabled']]),
      types: prng.chance(0.3) ? ['report', 'agent'] : null,
      modes: times.map((atMs) => ({
        atMs,
        mode: prng.weighted<Mode>({ works: 4, fails: 4, hangs: 2, loses: 3, gone: 1 }),
      })),
      hangsWhenCalm: index === 0 && count > 1 && prng.chance(0.7),
    }
  }

  /** The far side of one process: the network and the receivers behind it. */
  posterFor(node: SimNode, instance: ProcessInstance): EgressPoster {
    const { time } = this.#options
    const closed = Promise.withResolvers<never>()
    closed.promise.catch(() => {})
    const exchange = async (request: EgressRequest): Promise<EgressAnswer | null> => {
      const done = this.#enter(`${request.headers['webhook-id']} ${request.url}`, instance)
      await time.sleep(this.#latency())
      const { mode, answer } = this.#receive(request)
      await time.sleep(mode === 'hangs' ? SEND_TIMEOUT_MS : this.#latency())
      done()
      return answer
    }
    return {
      post: async (request) => {
        if (!instance.alive) return never()
        node.faults.trigger('send')
        if (!instance.alive) return never()
        const answer = await Promise.race([exchange(request), closed.promise]).finally(() => instance.untilAwake())
        node.faults.trigger('sent')
        await instance.untilAwake()
        if (answer === null) throw new EgressError('no answer')
        return answer
      },
      close: () => closed.reject(new Error('the service is stopping')),
    }
  }

  #receive({ url, headers, body }: EgressRequest): { mode: Mode; answer: EgressAnswer | null } {
    const { time, trace } = this.#options
    const receiver = this.all.find((one) => one.url === url)
    if (!receiver) throw new Error(`No receiver has the address ${url}`)
    const mode = this.#modeOf(receiver)
    this.messages.push({ receiver: receiver.name, headers, body, atMs: time.now, mode })
    trace.note(receiver.name, `event ${headers['webhook-id']}: ${mode}`)
    if (mode !== 'works') trace.fault(`webhook_${mode}`)
    return { mode, answer: this.#answer(mode) }
  }

  #modeOf({ modes, hangsWhenCalm }: Receiver): Mode {
    const { time, phase } = this.#options
    if (phase() === 'calm' && hangsWhenCalm) return 'hangs'
    const current = phase() === 'faults' ? modes.findLast(({ atMs }) => atMs <= time.now) : undefined
    return current?.mode ?? 'works'
  }

  #answer(mode: Mode): EgressAnswer | null {
    const { prng } = this.#options
    switch (mode) {
      case 'works':
        return { status: prng.pick([200, 202, 204]), retryAfter: undefined, text: '' }
      case 'fails':
        return { status: prng.pick([301, 404, 429, 500, 503]), retryAfter: prng.pick([undefined, '30']), text: 'no' }
      case 'gone':
        return { status: 410, retryAfter: undefined, text: '' }
      default:
        return null
    }
  }

  /** Notes when another process, or the same one, is sending the same message. */
  #enter(key: string, instance: ProcessInstance): () => void {
    const senders = this.#sending.get(key) ?? new Set<ProcessInstance>()
    this.#sending.set(key, senders)
    if ([...senders].some((one) => one.alive)) this.overlaps.add(key)
    senders.add(instance)
    return () => void senders.delete(instance)
  }

  #latency(): number {
    return this.#options.prng.int(5, 80)
  }
}
