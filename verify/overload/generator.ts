import { performance } from 'node:perf_hooks'
import { setTimeout as pause } from 'node:timers/promises'
import { type LoadAnswer, LoadConnection } from './connection.ts'
import { type LoadPlan, type LoadRequest, LoadRequests } from './load-requests.ts'
import { emptyTally, type Phase, type Tally } from './load-result.ts'

const MAX_CONNECTIONS = 2_000
/** Open beforehand, as a balancer has them. */
const FIRST_CONNECTIONS = 1_000
/** A client's patience: what is answered later than that helps nobody. */
const PATIENCE_MS = 5_000
const EVERY_MS = 2
const CONNECTING_MS = 500

interface Underway extends LoadRequest {
  dueMs: number
}

/**
 * Open-loop load in a process of its own: requests are due at a constant rate whether or not those before were answered,
 * as they come from people who know nothing of each other. A latency runs from the moment a request was due.
 */
class Generator {
  readonly #plan: LoadPlan
  readonly #requests: LoadRequests
  readonly #idle: LoadConnection[] = []
  #open = 0
  #underway = 0
  #tally = emptyTally()

  constructor(plan: LoadPlan) {
    this.#plan = plan
    this.#requests = new LoadRequests(plan)
  }

  async run({ ratePerSecond, durationMs }: Phase): Promise<Tally> {
    this.#tally = emptyTally()
    while (this.#open < FIRST_CONNECTIONS) {
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
    const tally = this.#tally
    tally.generatorBusy = performance.eventLoopUtilization(before).utilization
    // What is still open gets its time, and counts with the phase it was due in.
    const deadlineMs = performance.now() + PATIENCE_MS
    while (this.#underway > 0 && performance.now() < deadlineMs) await pause(EVERY_MS)
    if (this.#underway > 0) throw new Error(`${this.#underway} requests were neither answered nor given up`)
    tally.seconds = (performance.now() - startMs) / 1_000
    tally.connections = this.#open
    return tally
  }

  #begin(dueMs: number): void {
    const request = { ...this.#requests.next(), dueMs }
    this.#tally.offered[request.kind] += 1
    const connection = this.#idle.pop() ?? this.#connect()
    if (connection) this.#send(connection, request)
    else this.#tally.unsent += 1
  }

  #fail(what: string): void {
    this.#tally.failures[what] = (this.#tally.failures[what] ?? 0) + 1
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

  #send(connection: LoadConnection, request: Underway): void {
    this.#underway += 1
    let givenUp = false
    const timer = setTimeout(
      () => {
        givenUp = true
        connection.destroy()
      },
      Math.max(0, request.dueMs + PATIENCE_MS - performance.now()),
    )
    connection.send(request.bytes, (answer) => {
      this.#underway -= 1
      clearTimeout(timer)
      if (answer === null) return this.#fail(givenUp ? 'timeout' : 'connection broken')
      this.#idle.push(connection)
      this.#note(request, answer)
    })
  }

  #note(request: Underway, { status, saysWhenToComeBack }: LoadAnswer): void {
    if (status < 300) this.#succeed(this.#tally, request)
    else if (status !== 429 && status !== 503) this.#fail(`status ${status}`)
    else {
      this.#tally.refused[request.kind] += 1
      if (!saysWhenToComeBack) this.#tally.refusedWithoutHint += 1
    }
  }

  #succeed(tally: Tally, { kind, dueMs, run }: Underway): void {
    tally.succeeded[kind] += 1
    tally.latenciesMs[kind].push(performance.now() - dueMs)
    if (kind === 'callback') tally.acceptedRuns.push(run)
  }
}

let generator: Generator | undefined

process.on('message', (message: { plan: LoadPlan } | { phase: Phase }) => {
  if ('plan' in message) {
    generator = new Generator(message.plan)
    return
  }
  generator?.run(message.phase).then(
    (tally) => process.send?.({ tally }),
    (error: unknown) => process.send?.({ failed: String(error) }),
  )
})
process.on('disconnect', () => process.exit())
