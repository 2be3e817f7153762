import { type HttpResponse, json, text } from '../../../src/sandbox/http-response.ts'
import type { Dials } from '../faults/plan.ts'
import type { SimNode } from '../system/node.ts'
import type { Life } from '../system/process-instance.ts'
import { RUNTIME_URL } from '../system/sim-config.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import type { RuntimeRequest, SimRuntime } from './runtime.ts'

const HTML = { 'content-type': 'text/html' }
const NO_ROUTE = 'no Route matched with those values'

/** How long after its end a run may still be shown as running. */
export const STALE_MS = 15_000

export interface NetworkOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  dials: () => Dials
  runtime: SimRuntime
  jwks: string
  /** Two asked about one thread at once. */
  onOverlap: (thread: string) => void
}

/** One exchange: `run` answers null when the connection breaks, and not at all when it hangs. */
interface Call {
  run: (answer: (answer: HttpResponse | null) => void) => void
  finished: () => void
}

type Fate = 'ok' | 'error' | 'reset' | 'lost' | 'hang' | 'garbage'

/**
 * What lies between the service and the others: every call takes its time, and some go wrong, before or after they had
 * their effect. It also counts: how often each thread was asked about, and whether two asked at once.
 */
export class Network {
  readonly calls = new Map<string, number>()
  runtimeDown: 'no' | 'refuses' | 'hangs' = 'no'
  identityDown = false
  readonly #options: NetworkOptions
  /** Who is asking about a thread now, as often as they do. */
  readonly #asking = new Map<string, Life[]>()

  constructor(options: NetworkOptions) {
    this.#options = options
  }

  fetchFor(node: SimNode, life: Life): typeof fetch {
    return (input, init) =>
      new Promise((resolve, reject) => {
        if (!life.alive) return
        const url = String(input)
        const request = toRequest(url, init)
        const call = url.startsWith(RUNTIME_URL) ? this.#toRuntime(request, life) : this.#toIdentity()
        let over = false
        const finish = (end: () => void) => {
          if (over) return
          over = true
          forget()
          call.finished()
          if (life.alive) end()
        }
        const forget = life.onEnd(() => finish(() => {}))
        const { signal } = init ?? {}
        if (signal?.aborted) return finish(() => reject(signal.reason))
        signal?.addEventListener('abort', () => finish(() => reject(signal.reason)), { once: true })
        node.faults.strike('fetch')
        if (!life.alive) return
        call.run((answer) => {
          // Arrived, as far as the others are concerned; the process hears of it when it is awake.
          call.finished()
          life.reach(() => {
            if (over) return
            node.faults.strike('fetched')
            life.reach(() =>
              finish(() => (answer === null ? reject(new TypeError('fetch failed')) : resolve(toResponse(answer)))),
            )
          })
        })
      })
  }

  #toRuntime(request: RuntimeRequest, life: Life): Call {
    const { time, runtime, trace } = this.#options
    const thread = threadOf(request)
    let asking = thread !== '' && !request.path.includes('/cancel')
    if (asking) this.#ask(thread, life)
    return {
      finished: () => {
        const askers = this.#asking.get(thread)
        if (asking) askers?.splice(askers.indexOf(life), 1)
        asking = false
      },
      run: (answer) => {
        if (this.runtimeDown === 'hangs') return
        const fate = this.runtimeDown === 'refuses' ? 'reset' : this.#fate()
        if (fate !== 'ok') trace.fault(`call_${fate}`, `${request.method} ${request.path}`)
        time.after(this.#latency(), () => {
          if (fate === 'reset') return answer(null)
          if (fate === 'error') return answer(this.#error(request))
          if (fate === 'hang' && this.#options.prng.chance(0.5)) return
          const real = this.#perhapsStale(request, runtime.handle(request))
          if (fate === 'hang') return
          trace.note('runtime', `${request.method} ${request.path}: ${real.status}`)
          const given = fate === 'garbage' ? garbage(real) : real
          time.after(this.#latency(), () => answer(fate === 'lost' ? null : given))
        })
      },
    }
  }

  #toIdentity(): Call {
    const { time, trace, jwks } = this.#options
    return {
      finished: () => {},
      run: (answer) => {
        time.after(this.#latency(), () => {
          if (this.identityDown) {
            trace.fault('identity_refused')
            return answer(this.#options.prng.chance(0.5) ? null : text(503, 'later'))
          }
          answer({ status: 200, body: jwks })
        })
      },
    }
  }

  #ask(thread: string, life: Life): void {
    this.calls.set(thread, (this.calls.get(thread) ?? 0) + 1)
    const askers = this.#asking.get(thread) ?? []
    this.#asking.set(thread, askers)
    // One that was suspended may wake up without its lease, in the middle of its questions.
    if (askers.some((one) => !one.wasSuspended) && !life.wasSuspended) this.#options.onOverlap(thread)
    askers.push(life)
  }

  #fate(): Fate {
    const { error, reset, lost, hang, garbage } = this.#options.dials().calls
    const ok = 1 - error - reset - lost - hang - garbage
    return this.#options.prng.weighted({ ok, error, reset, lost, hang, garbage })
  }

  #latency(): number {
    const { prng, dials } = this.#options
    return prng.chance(dials().calls.slow) ? prng.int(100, 1_200) : prng.int(1, 30)
  }

  /** Says nothing about the run; neither does the page of another server, nor a gateway that has lost the runtime. */
  #error({ method, path }: RuntimeRequest): HttpResponse {
    const { prng } = this.#options
    const status = prng.pick([500, 502, 503, 504, 429, 401, 403, 404, 404, 405, 410])
    if (status === 404 && prng.chance(0.3)) return { status, headers: HTML, body: '<h1>Not Found</h1>' }
    if (status === 404)
      return prng.pick([text(404, `Cannot ${method} ${path}`), json(404, { message: NO_ROUTE }), text(404, '')])
    if (status === 405 || status === 410) return text(status, 'not here')
    return prng.chance(0.5) ? json(status, { detail: 'the run is out of reach' }) : text(status, 'run')
  }

  /** A replica that lags: for a while it shows the run as it was. */
  #perhapsStale(request: RuntimeRequest, real: HttpResponse): HttpResponse {
    const { prng, dials, runtime, time, trace } = this.#options
    const runId = /^\/threads\/[^/]+\/runs\/([^/?]+)$/.exec(request.path)?.[1]
    const run = runId === undefined ? undefined : runtime.runs.get(runId)
    if (!run || run.endedAtMs === null || run.removed || time.now - run.endedAtMs > STALE_MS) return real
    if (!prng.chance(dials().calls.stale)) return real
    trace.fault('call_stale', run.runId)
    return { ...real, body: real.body.replace(/"status":"\w+"/, '"status":"running"') }
  }
}

function garbage(real: HttpResponse): HttpResponse {
  if (real.body.length % 2 === 0) return { status: 200, headers: HTML, body: '<h1>Hi</h1>' }
  return { ...real, body: real.body.slice(0, -2) }
}

function threadOf({ path, body }: RuntimeRequest): string {
  const [, , thread = ''] = path.split('?', 1)[0]?.split('/') ?? []
  if (thread !== '' || body === null) return thread
  return String((JSON.parse(body) as { thread_id?: string }).thread_id ?? '')
}

function toRequest(url: string, init: RequestInit | undefined): RuntimeRequest {
  return {
    method: init?.method ?? 'GET',
    path: url.slice(new URL(url).origin.length),
    headers: init?.headers as Record<string, string>,
    body: typeof init?.body === 'string' ? init.body : null,
  }
}

function toResponse({ status, headers, body }: HttpResponse): Response {
  return new Response(body, { status, headers: { 'content-type': 'application/json', ...headers } })
}
