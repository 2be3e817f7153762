import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import type { Topic } from '../db/announcements.ts'
import { DeliveryWorker, type WorkerOptions } from '../deliveries/delivery-worker.ts'
import { EgressGuard } from '../egress/egress-guard.ts'
import type { EgressPoster } from '../egress/egress-port.ts'
import { EventFanout } from './event-fanout.ts'
import { WebhookChannel } from './webhook-channel.ts'

/** Requests that are in flight when the service stops have this long to end. Another node repeats the others. */
const LAST_ANSWERS_MS = 3_000

interface WebhooksOptions extends WorkerOptions {
  egress: { allow: readonly string[]; allowHttp: boolean; ca?: string | undefined }
  /** Absent: through the guard, by HTTP. */
  poster?: EgressPoster | undefined
}

/** Sends events to the endpoints of backends: a cursor writes deliveries from the log, a worker sends them. */
export class Webhooks {
  readonly guard: EgressGuard
  readonly #options: WebhooksOptions
  readonly #meter: Meter
  readonly #fanout: EventFanout
  readonly #worker: { readonly inFlight: number } & Pick<
    DeliveryWorker<object, { state: string }>,
    'wake' | 'stopLeasing' | 'close'
  >
  readonly #givenUp = new AbortController()
  #poster: Promise<EgressPoster> | null = null

  constructor(options: WebhooksOptions) {
    this.#options = options
    this.#meter = options.meter ?? silentMeter
    this.guard = new EgressGuard(options.egress)
    const channel = new WebhookChannel({
      ...options,
      meter: this.#meter,
      poster: () => this.#openPoster(),
      givenUp: this.#givenUp.signal,
    })
    this.#worker = new DeliveryWorker(options, channel)
    this.#fanout = new EventFanout(options)
  }

  get inFlight(): number {
    return this.#worker.inFlight
  }

  onTopic(topic: Topic): void {
    if (topic === 'events') this.#fanout.onEvent()
    if (topic !== 'webhooks') return
    this.#fanout.onEndpoint()
    this.#worker.wake()
  }

  stopLeasing(): void {
    this.#worker.stopLeasing()
  }

  async close(): Promise<void> {
    const { clock } = this.#options
    const closed = new AbortController()
    const giveUp = async () => {
      this.#givenUp.abort()
      ;(await this.#poster)?.close()
    }
    void clock.sleep(LAST_ANSWERS_MS, closed.signal).then(giveUp)
    await this.#fanout.close()
    await this.#worker.close()
    closed.abort()
    await giveUp()
  }

  /** The HTTP client is loaded with the first delivery: TLS slows down a start. */
  #openPoster(): Promise<EgressPoster> {
    const { poster, clock, egress } = this.#options
    this.#poster ??=
      poster === undefined
        ? import('../egress/egress-client.ts').then(
            ({ EgressClient }) => new EgressClient({ guard: this.guard, clock, ca: egress.ca }),
          )
        : Promise.resolve(poster)
    return this.#poster
  }
}
