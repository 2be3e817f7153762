import { buildApp } from '../../../src/app.ts'
import type { Clock } from '../../../src/core/clock.ts'
import { UnavailableError } from '../../../src/core/errors.ts'
import type { App } from '../../../src/http/app-instance.ts'
import { createServices, type Dependencies, type Services } from '../../../src/services.ts'
import { ArmedFaults } from '../faults/armed-faults.ts'
import { type FaultEffect, type FaultPoint, NODE_NAMES, type NodeName } from '../faults/plan.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import { mirrorMembers } from './mirror.ts'
import { ProcessInstance } from './process-instance.ts'
import { configOf } from './sim-config.ts'

export interface NodeRequest {
  method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  path: string
  headers: Record<string, string>
  body?: string
}

export interface NodeResponse {
  status: number
  headers: Record<string, string>
  body: string
}

/** The client's side of an event stream. */
export interface StreamClient {
  onChunk(text: string): void
  /** Called when either side closed the stream, or the process ended. */
  onClose(): void
}

const STREAMED = { validate: false, payloadAsStream: true } as const

/** A built application that is used by every boot of one node, each with its own services. */
export interface ReusableApp {
  name: NodeName
  app: App
  use(services: Services): void
  /** Ends the timers that the application itself waits for, so that the next boot does not inherit them. */
  release(): void
}

/** Builds the real application of each node once for all seeds. Only its services are replaced. */
export async function buildApps(dependencies: Dependencies): Promise<Record<NodeName, ReusableApp>> {
  const apps = await Promise.all(
    NODE_NAMES.map(async (name) => {
      const config = configOf(name)
      let current = await createServices(config, dependencies)
      let boot = new AbortController()
      const clock: Clock = {
        now: () => current.clock.now(),
        calendar: () => current.clock.calendar(),
        elapsed: () => current.clock.elapsed(),
        sleep: (ms, signal) => Promise.race([current.clock.sleep(ms, signal), untilAborted(boot.signal)]),
      }
      const app = await buildApp({ ...mirrorMembers(current, () => current), clock, config })
      const use = (services: Services) => {
        current = services
        boot = new AbortController()
      }
      return [name, { name, app, use, release: () => boot.abort() }] as const
    }),
  )
  return Object.fromEntries(apps) as Record<NodeName, ReusableApp>
}

function untilAborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

export interface SimNodeOptions {
  application: ReusableApp
  time: VirtualTime
  /** The dependencies of a new process instance. */
  dependenciesOf: (node: SimNode, instance: ProcessInstance) => Dependencies
  note: (what: string) => void
  onTriggered: (point: FaultPoint, effect: FaultEffect) => void
  /** The process crashed. */
  onCrash: (node: SimNode) => void
}

/** One node of the service: its process boots, serves, crashes at any moment, and boots again. */
export class SimNode {
  readonly name: NodeName
  readonly faults: ArmedFaults
  databaseDown = false
  boots = 0
  bootedAtMs = 0
  crashes = 0
  /** When its longest suspension ends or ended; 0 without one. */
  suspendedUntilMs = 0
  readonly #options: SimNodeOptions
  #instance: ProcessInstance | null = null
  #services: Services | null = null
  #draining = false

  constructor(options: SimNodeOptions) {
    this.#options = options
    this.name = options.application.name
    this.faults = new ArmedFaults((point, effect) => {
      options.onTriggered(point, effect)
      if (effect.kind === 'crash') this.#crashed()
      if (effect.kind === 'suspend') this.suspend(effect.ms)
    })
  }

  get up(): boolean {
    return this.#services !== null && !this.#draining
  }

  get instance(): ProcessInstance | null {
    return this.#instance
  }

  /** The time of the service as this process knows it; null while it is down. */
  get serviceMs(): number | null {
    return this.#services?.clock.now() ?? null
  }

  /** How long ago this process last learned of steps of the database's clock. */
  get heartbeatAgeMs(): number {
    return this.#services?.node.lastWriteAgeMs ?? 0
  }

  suspend(ms: number): void {
    if (!this.#instance) return
    this.#instance.suspend(ms)
    this.suspendedUntilMs = Math.max(this.suspendedUntilMs, this.#options.time.now + ms)
  }

  async boot(): Promise<void> {
    if (this.#instance) return
    this.boots += 1
    const instance = new ProcessInstance(`${this.name}${this.boots}`, this.#options.time)
    this.#instance = instance
    this.#draining = false
    const services = await this.#createServices(instance)
    if (services === null || !instance.alive) return
    this.#services = services
    this.#options.application.use(services)
    instance.onEnd(() => this.#options.application.release())
    void services.keySet.warmUp()
    void services.outbox.start().catch(() => {})
    this.bootedAtMs = this.#options.time.now
    this.#options.note('booted')
  }

  /** Null when the database cannot be reached: the process exits, and is started again. */
  async #createServices(instance: ProcessInstance): Promise<Services | null> {
    try {
      return await createServices(configOf(this.name), this.#options.dependenciesOf(this, instance))
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error
      if (instance.alive) this.kill()
      return null
    }
  }

  kill(): void {
    if (!this.#instance) return
    this.#options.note('killed')
    this.#crashed()
  }

  /** An orderly stop: requests in flight end first. */
  async stop(): Promise<void> {
    const instance = this.#instance
    const services = this.#services
    if (!instance || !services || this.#draining) return
    this.#draining = true
    this.#options.note('stopping')
    services.readiness.startDraining()
    await services.close()
    if (!instance.alive) return
    this.#options.note('stopped')
    this.#end()
  }

  /** Null when the connection breaks or cannot be made. */
  request({ method, path, headers, body }: NodeRequest): Promise<NodeResponse | null> {
    const instance = this.#instance
    if (!instance || !this.up) return Promise.resolve(null)
    return new Promise((resolve) => {
      const forget = instance.onEnd(() => resolve(null))
      const answered = (answer: NodeResponse | null) => {
        // A process that has ended sends nothing.
        if (!instance.alive) return
        forget()
        resolve(answer)
      }
      const payload = body === undefined ? {} : { payload: body }
      const inject = () =>
        this.#options.application.app.inject({ method, url: path, headers, validate: false, ...payload })
      instance.whenAwake(() => {
        inject().then(
          ({ statusCode, headers, body }) => {
            answered({ status: statusCode, headers: headers as Record<string, string>, body })
          },
          () => answered(null),
        )
      })
    })
  }

  /** The status of the response, or null when there was none; `close` hangs up. */
  async stream(
    { path, headers }: Pick<NodeRequest, 'path' | 'headers'>,
    client: StreamClient,
  ): Promise<{ status: number; close: () => void } | null> {
    const instance = this.#instance
    if (!instance || !this.up) return null
    const open = () => this.#options.application.app.inject({ method: 'GET', url: path, headers, ...STREAMED })
    const response = await new Promise<Awaited<ReturnType<typeof open>> | null>((resolve) => {
      instance.onEnd(() => resolve(null))
      instance.whenAwake(() => {
        open().then(resolve, () => resolve(null))
      })
    })
    if (!response || !instance.alive) return null
    const stream = response.stream()
    const close = () => {
      forget()
      response.raw.res.destroy()
      stream.destroy()
    }
    const forget = instance.onEnd(close)
    stream.on('error', () => {})
    stream.setEncoding('utf8')
    stream.on('data', (text: string) => {
      if (instance.alive) client.onChunk(text)
    })
    stream.once('close', () => {
      forget()
      client.onClose()
    })
    return { status: response.statusCode, close }
  }

  #crashed(): void {
    this.crashes += 1
    this.#end()
    this.#options.onCrash(this)
  }

  #end(): void {
    const instance = this.#instance
    this.#instance = null
    this.#services = null
    instance?.end()
  }
}
