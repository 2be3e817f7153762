import { type HttpResponse, json, text } from '../../../src/sandbox/http-response.ts'
import type { FaultRates } from '../faults/plan.ts'
import type { SimNode } from '../system/node.ts'
import type { ProcessInstance } from '../system/process-instance.ts'
import { RUNTIME_URL } from '../system/sim-config.ts'
import type { Prng } from '../time/prng.ts'
import type { Trace } from '../time/trace.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import type { RuntimeRequest, SimRuntime } from './runtime.ts'

const HTML = { 'content-type': 'text/html' }
const NO_ROUTE = 'no Route matched with those values'

/** How far a lagging replica may be behind. */
export const MAX_LAG_MS = 8_000
/** A caller that lives this much longer has stored the answer. */
export const STORED_WITHIN_MS = 5_000
/** An aborted call may still take effect within this time. */
const LATE_EFFECT_MS = 5_500
/** A start may be handled this much later than it was sent. The service waits for its answer a little less long. */
const LATE_START_MS = 62_000

export interface NetworkOptions {
  time: VirtualTime
  prng: Prng
  trace: Trace
  rates: () => FaultRates
  runtime: SimRuntime
  jwks: string
  /** How long a call takes while no fault is active. */
  callMs: { min: number; max: number }
  /** Whether a client is answering a question on this thread now. */
  isResumed: (thread: string) => boolean
  /** Two processes called the runtime about one thread at once. */
  /** `isLook`: one of the two lists the runs of the thread. */
  onOverlap: (thread: string, how: { isLook: boolean }) => void
}

/** One call. `run` answers null when the connection breaks, and never when it hangs. */
interface Call {
  run: (answer: (answer: HttpResponse | null) => void) => void
  finished: () => void
}

type CallFault = 'ok' | 'error' | 'reset' | 'lost' | 'hang' | 'garbage'

interface Caller {
  instance: ProcessInstance
  isList: boolean
}

/**
 * The network between the service and the outside. Every call has a latency; some fail, before or after their effect. It
 * counts the calls about each thread, and reports two processes that make them at once.
 */
export class Network {
  readonly calls = new Map<string, number>()
  /** Answers that showed an active run of the service in a list, by run. */
  readonly listed = new Map<string, { atMs: number; instance: ProcessInstance }[]>()
  /** When the service first sent a request to cancel a run, by run. */
  readonly cancels = new Map<string, number>()
  /** Runs with a cancel request whose caller got no good answer, or crashed before it could store the answer. */
  readonly failedCancels = new Set<string>()
  runtimeDown: 'no' | 'refuses' | 'hangs' | 'forbids' = 'no'
  identityDown = false
  readonly #options: NetworkOptions
  /** Separate, so that the other random values do not depend on the starts. */
  readonly #startPrng: Prng
  /** The processes that are calling about a thread now, once per call. */
  readonly #calling = new Map<string, Caller[]>()

  constructor(options: NetworkOptions) {
    this.#options = options
    this.#startPrng = options.prng.split('starts')
  }

  fetchFor(node: SimNode, instance: ProcessInstance): typeof fetch {
    return (input, init) =>
      new Promise((resolve, reject) => {
        if (!instance.alive) return
        const url = String(input)
        const request = toRequest(url, init)
        const call = url.startsWith(RUNTIME_URL) ? this.#toRuntime(request, instance) : this.#toIdentity()
        let over = false
        const finish = (end: () => void) => {
          if (over) return
          over = true
          forget()
          call.finished()
          if (instance.alive) end()
        }
        const forget = instance.onEnd(() => finish(() => {}))
        const { signal } = init ?? {}
        if (signal?.aborted) return finish(() => reject(signal.reason))
        signal?.addEventListener('abort', () => finish(() => reject(signal.reason)), { once: true })
        node.faults.trigger('fetch')
        if (!instance.alive) return
        call.run((answer) => {
          // The call is over for the network; a suspended process notices when it is awake.
          call.finished()
          instance.whenAwake(() => {
            if (over) return
            node.faults.trigger('fetched')
            instance.whenAwake(() =>
              finish(() => (answer === null ? reject(new TypeError('fetch failed')) : resolve(toResponse(answer)))),
            )
          })
        })
      })
  }

  #toRuntime(request: RuntimeRequest, instance: ProcessInstance): Call {
    const { time, runtime, trace, isResumed } = this.#options
    const thread = threadOf(request)
    // An erasure deletes threads while other nodes may still check their jobs.
    const counts =
      thread !== '' && thread !== 'search' && !request.path.includes('/cancel') && request.method !== 'DELETE'
    if (counts) this.calls.set(thread, (this.calls.get(thread) ?? 0) + 1)
    const cancelled = /\/runs\/([^/]+)\/cancel/.exec(request.path)?.[1]
    if (cancelled) {
      const sentAtMs = time.now
      if (!this.cancels.has(cancelled)) this.cancels.set(cancelled, sentAtMs)
      instance.onEnd(() => {
        if (time.now < sentAtMs + STORED_WITHIN_MS) this.failedCancels.add(cancelled)
      })
    }
    // A request that answers a question reads the state, also while another node checks the paused job. A check of the
    // paused job may outlive the request: then it goes on beside the start and the next check, and its result is dropped.
    const isOfPaused = request.path.endsWith('/state') || isList(request)
    let asking = counts && !(isOfPaused && isResumed(thread))
    const mayOverlap = isResumed(thread)
    const caller = { instance, isList: isList(request) }
    if (asking) this.#noteCaller(thread, caller, { mayOverlap })
    let isOver = false
    const finished = () => {
      isOver = true
      const callers = this.#calling.get(thread)
      if (asking) callers?.splice(callers.indexOf(caller), 1)
      asking = false
    }
    // The service repeats a start only if its connection broke, or if another process took the lease.
    const mayBeRepeated = () => isOver || instance.mayHaveLostLeases
    return {
      finished,
      run: (answer) => {
        if (this.runtimeDown !== 'no' && cancelled) this.failedCancels.add(cancelled)
        if (this.runtimeDown === 'hangs') return
        if (this.runtimeDown === 'forbids') return void time.after(1, () => answer(json(403, { detail: 'Forbidden' })))
        if (this.runtimeDown === 'no' && this.#perhapsLate(request, answer, mayBeRepeated)) return
        const fault = this.runtimeDown === 'refuses' ? 'reset' : this.#nextFault()
        if (fault !== 'ok' && cancelled) this.failedCancels.add(cancelled)
        if (fault !== 'ok') trace.fault(`call_${fault}`, `${request.method} ${request.path}`)
        if (fault === 'hang') return this.#hang(request, finished)
        time.after(this.#latency(), () => {
          if (fault === 'reset') return answer(null)
          if (fault === 'error') return answer(this.#error(request))
          const real = this.#perhapsLagging(request) ?? runtime.handle(request)
          trace.note('runtime', `${request.method} ${request.path}: ${real.status}`)
          const given = fault === 'garbage' ? garbage(real) : real
          time.after(this.#latency(), () => {
            if (fault === 'ok' && !isOver && isList(request)) this.#noteListed(real, instance)
            answer(fault === 'lost' ? null : given)
          })
        })
      },
    }
  }

  /**
   * Gives no answer. The request has no effect, takes effect at once, or takes effect after the caller has stopped waiting.
   * Once a start has taken effect, its run may end and other processes may continue, while its caller still waits.
   */
  #hang(request: RuntimeRequest, onEffect: () => void): void {
    const { prng, time, runtime } = this.#options
    if (prng.chance(0.4)) return
    const delayMs = prng.chance(0.5) ? this.#latency() : prng.int(0, LATE_EFFECT_MS)
    time.after(delayMs, () => {
      runtime.handle(request)
      if (isStart(request)) onEffect()
    })
  }

  /** A start that the runtime handles late. It is answered then, or its connection has broken before. */
  #perhapsLate(
    request: RuntimeRequest,
    answer: (answer: HttpResponse | null) => void,
    mayBeRepeated: () => boolean,
  ): boolean {
    const { time, runtime, trace, rates } = this.#options
    const { held, broken } = rates().starts
    if (held + broken === 0 || !isStart(request)) return false
    const prng = this.#startPrng
    const how = prng.weighted({ ok: 1 - held - broken, held, broken })
    if (how === 'ok') return false
    const lateMs = prng.int(0, LATE_START_MS)
    trace.fault(`start_${how}`, `${request.path} by ${lateMs} ms`)
    if (how === 'broken') time.after(prng.int(0, Math.min(lateMs, 500)), () => answer(null))
    time.after(lateMs, () => {
      const real = runtime.handle(request, { isLate: how === 'broken' || mayBeRepeated() })
      trace.note('runtime', `${request.method} ${request.path}, ${lateMs} ms late: ${real.status}`)
      if (how === 'held') time.after(1, () => answer(real))
    })
    return true
  }

  #toIdentity(): Call {
    const { time, trace, jwks, prng } = this.#options
    return {
      finished: () => {},
      run: (answer) => {
        time.after(prng.int(1, 30), () => {
          if (this.identityDown) {
            trace.fault('identity_refused')
            return answer(prng.chance(0.5) ? null : text(503, 'later'))
          }
          answer({ status: 200, body: jwks })
        })
      },
    }
  }

  #noteCaller(thread: string, caller: Caller, { mayOverlap }: { mayOverlap: boolean }): void {
    const callers = this.#calling.get(thread) ?? []
    this.#calling.set(thread, callers)
    const others = callers.filter(({ instance }) => !instance.mayHaveLostLeases)
    if (others.length > 0 && !caller.instance.mayHaveLostLeases && !mayOverlap) {
      this.#options.onOverlap(thread, { isLook: caller.isList || others.every((one) => one.isList) })
    }
    callers.push(caller)
  }

  #noteListed({ status, body }: HttpResponse, instance: ProcessInstance): void {
    if (status !== 200) return
    for (const run of JSON.parse(String(body)) as { run_id: string; status: string }[]) {
      if (run.status !== 'pending' && run.status !== 'running') continue
      const shown = this.listed.get(run.run_id) ?? []
      this.listed.set(run.run_id, [...shown, { atMs: this.#options.time.now, instance }])
    }
  }

  #nextFault(): CallFault {
    const { error, reset, lost, hang, garbage } = this.#options.rates().calls
    const ok = 1 - error - reset - lost - hang - garbage
    return this.#options.prng.weighted({ ok, error, reset, lost, hang, garbage })
  }

  /** The latency of one direction. */
  #latency(): number {
    const { prng, rates, callMs } = this.#options
    return prng.chance(rates().calls.slow) ? prng.int(100, 1_200) : prng.int(callMs.min, callMs.max) / 2
  }

  /** An error that says nothing about the run, or the response of a gateway that has lost the runtime. */
  #error({ method, path }: RuntimeRequest): HttpResponse {
    const { prng } = this.#options
    const status = prng.pick([500, 502, 503, 504, 429, 401, 403, 404, 404, 405, 410])
    if (status === 404 && prng.chance(0.3)) return { status, headers: HTML, body: '<h1>Not Found</h1>' }
    if (status === 404)
      return prng.pick([text(404, `Cannot ${method} ${path}`), json(404, { message: NO_ROUTE }), text(404, '')])
    if (status === 405 || status === 410) return text(status, 'not here')
    return prng.chance(0.5) ? json(status, { detail: 'the run is out of reach' }) : text(status, 'run')
  }

  /** The answer of a replica that does not have the last writes yet. Undefined: no replica lags. */
  #perhapsLagging(request: RuntimeRequest): HttpResponse | undefined {
    const { prng, rates, runtime, time, trace } = this.#options
    const isLookup = request.method === 'GET' || request.path.endsWith('/history')
    if (!isLookup || !prng.chance(rates().calls.stale)) return undefined
    const lagMs = prng.int(500, MAX_LAG_MS)
    const lagging = runtime.handleAsOf(request, time.now - lagMs)
    if (lagging) trace.fault('call_stale', `${request.path} by ${lagMs} ms`)
    return lagging
  }
}

function isList({ method, path }: RuntimeRequest): boolean {
  return method === 'GET' && /^\/threads\/[^/]+\/runs(?:\?|$)/.test(path)
}

function isStart({ method, path }: RuntimeRequest): boolean {
  return method === 'POST' && path.endsWith('/runs')
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
  return new Response(status === 204 ? null : body, {
    status,
    headers: { 'content-type': 'application/json', ...headers },
  })
}
