import { performance } from 'node:perf_hooks'
import { setTimeout as pause } from 'node:timers/promises'
import { LoadConnection, type LoadResponse } from './connection.ts'
import { type LoadPlan, type LoadRequest, LoadRequests } from './load-requests.ts'
import { emptyResult, type LoadResult, type Phase } from './load-result.ts'

const MAX_CONNECTIONS = 2_000
/** Opened before the load starts, as a load balancer does. */
const FIRST_CONNECTIONS = 1_000
/** Connections are used in turn. The service closes a connection whose first request does not come within 15 s. */
const USED_WITHIN_SECONDS = 5
/** Clients give up after this time. */
const CLIENT_TIMEOUT_MS = 5_000
const EVERY_MS = 2
const CONNECTING_MS = 500

interface RequestInFlight extends LoadRequest {
  dueMs: number
}

/**
 * Open-loop load in its own process: requests are due at a constant rate, whether or not earlier ones were answered. A
 * latency runs from the moment a request was due.
 */
class Generator {
  readonly #plan: LoadPlan
  readonly #requests: LoadRequests
  readonly #idle: LoadConnection[] = []
  #open = 0
  #inFlight = 0
  #result = emptyResult()

  constructor(plan: LoadPlan) {
    this.#plan = plan
    this.#requests = new LoadRequests(plan)
  }

  async run({ ratePerSecond, durationMs }: Phase): Promise<LoadResult> {
    this.#result = emptyResult()
    while (this.#open < Math.min(FIRST_CONNECTIONS, ratePerSecond * USED_WITHIN_SECONDS)) {
      const connection = this.#connect()
      if (connection) this.#idle.push(connection)
    }
    await pause(CONNECTING_MS)
    const before = performance.eventLoopUtilization()
    const startMs = performance.now()
    let sent = 0
    for (let nowMs = startMs; nowMs < startMs + durationMs; nowMs = performance.now()) {
      const due = Math.floor(((nowMs - startMs) / 1_000) * ratePerSecond)
      for (; sent < due; sent++) this.#begin(startMs + (sent * 1_000) / ratePerSecond)
      await pause(EVERY_MS)
    }
    const result = this.#result
    result.generatorBusy = performance.eventLoopUtilization(before).utilization
    // Requests still in flight count with the phase they were due in.
    const deadlineMs = performance.now() + CLIENT_TIMEOUT_MS
    while (this.#inFlight > 0 && performance.now() < deadlineMs) await pause(EVERY_MS)
    if (this.#inFlight > 0) throw new Error(`${this.#inFlight} requests were neither answered nor given up`)
    result.seconds = (performance.now() - startMs) / 1_000
    result.connections = this.#open
    return result
  }

  #begin(dueMs: number): void {
    const request = { ...this.#requests.next(), dueMs }
    this.#result.offered[request.kind] += 1
    const connection = this.#idle.shift() ?? this.#connect()
    if (connection) this.#send(connection, request)
    else this.#result.unsent += 1
  }

  #fail(what: string): void {
    this.#result.failures[what] = (this.#result.failures[what] ?? 0) + 1
  }

  #connect(): LoadConnection | undefined {
    if (this.#open >= MAX_CONNECTIONS) return undefined
    this.#open += 1
    const connection: LoadConnection = new LoadConnection(this.#plan.port, () => {
      this.#open -= 1
      const at = this.#idle.indexOf(connection)
      if (at >= 0) this.#idle.splice(at, 1)
    })
    return connection
  }

  #send(connection: LoadConnection, request: RequestInFlight): void {
    this.#inFlight += 1
    let givenUp = false
    const timer = setTimeout(
      () => {
        givenUp = true
        connection.destroy()
      },
      Math.max(0, request.dueMs + CLIENT_TIMEOUT_MS - performance.now()),
    )
    connection.send(request.bytes, (answer) => {
      this.#inFlight -= 1
      clearTimeout(timer)
      if (answer === null) return this.#fail(givenUp ? 'timeout' : 'connection broken')
      this.#idle.push(connection)
      this.#note(request, answer)
    })
  }

  #note(request: RequestInFlight, { status, hasRetryAfter }: LoadResponse): void {
    if (status < 300) this.#succeed(this.#result, request)
    else if (status !== 429 && status !== 503) this.#fail(`status ${status}`)
    else {
      this.#result.refused[request.kind] += 1
      if (!hasRetryAfter) this.#result.refusedWithoutRetryAfter += 1
    }
  }

  #succeed(result: LoadResult, { kind, dueMs, run }: RequestInFlight): void {
    result.succeeded[kind] += 1
    result.latenciesMs[kind].push(performance.now() - dueMs)
    if (kind === 'callback') result.acceptedRuns.push(run)
  }
}

let generator: Generator | undefined

process.on('message', (message: { plan: LoadPlan } | { phase: Phase }) => {
  if ('plan' in message) {
    generator = new Generator(message.plan)
    return
  }
  generator?.run(message.phase).then(
    (result) => process.send?.({ result }),
    (error: unknown) => process.send?.({ failed: String(error) }),
  )
})
process.on('disconnect', () => process.exit())
