import { buildApp } from '../../../src/app.ts'
import type { Clock } from '../../../src/core/clock.ts'
import type { App } from '../../../src/http/app-instance.ts'
import { createServices, type Dependencies, type Services } from '../../../src/services.ts'
import { ArmedFaults } from '../faults/armed-faults.ts'
import { type Effect, NODE_NAMES, type NodeName, type Point } from '../faults/plan.ts'
import type { VirtualTime } from '../time/virtual-time.ts'
import { mirrorMembers } from './mirror.ts'
import { Life } from './process-instance.ts'
import { configOf } from './sim-config.ts'

export interface Request {
  method: 'GET' | 'POST' | 'PATCH' | 'DELETE'
  path: string
  headers: Record<string, string>
  body?: string
}

export interface Answer {
  status: number
  headers: Record<string, string>
  body: string
}

/** An event stream as its client holds it. */
export interface StreamClient {
  onChunk(text: string): void
  /** Either side ended it, or the process did. */
  onClose(): void
}

const STREAMED = { validate: false, payloadAsStream: true } as const

/** A built application whose services change with each boot of the process it stands for. */
export interface Shell {
  name: NodeName
  app: App
  use(services: Services): void
  /** Ends whatever the application itself waits for, so that the next boot finds nothing of this one. */
  release(): void
}

/** Builds each node's application once for all seeds; it is the real one, and only its services are replaced. */
export async function buildShells(dependencies: Dependencies): Promise<Record<NodeName, Shell>> {
  const shells = await Promise.all(
    NODE_NAMES.map(async (name) => {
      const config = configOf(name)
      let current = await createServices(config, dependencies)
      let boot = new AbortController()
      const clock: Clock = {
        now: () => current.clock.now(),
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
  return Object.fromEntries(shells) as Record<NodeName, Shell>
}

function untilAborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve()
    else signal.addEventListener('abort', () => resolve(), { once: true })
  })
}

export interface SimNodeOptions {
  shell: Shell
  time: VirtualTime
  /** What surrounds one run of this process. */
  surround: (node: SimNode, life: Life) => Dependencies
  note: (what: string) => void
  onStrike: (point: Point, effect: Effect) => void
  /** The process ended by itself, in the middle of something. */
  onCrash: (node: SimNode) => void
}

/** One process of the service: it boots, serves, dies at any moment, and boots again. */
export class SimNode {
  readonly name: NodeName
  readonly faults: ArmedFaults
  databaseDown = false
  boots = 0
  crashes = 0
  readonly #options: SimNodeOptions
  #life: Life | null = null
  #services: Services | null = null
  #draining = false

  constructor(options: SimNodeOptions) {
    this.#options = options
    this.name = options.shell.name
    this.faults = new ArmedFaults((point, effect) => {
      options.onStrike(point, effect)
      if (effect.kind === 'crash') this.#crashed()
      if (effect.kind === 'suspend') this.#life?.suspend(effect.ms)
    })
  }

  get up(): boolean {
    return this.#services !== null && !this.#draining
  }

  get life(): Life | null {
    return this.#life
  }

  async boot(): Promise<void> {
    if (this.#life) return
    this.boots += 1
    const life = new Life(`${this.name}${this.boots}`, this.#options.time)
    this.#life = life
    this.#draining = false
    const services = await createServices(configOf(this.name), this.#options.surround(this, life))
    if (!life.alive) return
    this.#services = services
    this.#options.shell.use(services)
    life.onEnd(() => this.#options.shell.release())
    void services.keySet.warmUp()
    void services.outbox.start().catch(() => {})
    this.#options.note('booted')
  }

  kill(): void {
    if (!this.#life) return
    this.#options.note('killed')
    this.#crashed()
  }

  /** The orderly way: what is under way ends, then the process does. */
  async stop(): Promise<void> {
    const life = this.#life
    const services = this.#services
    if (!life || !services || this.#draining) return
    this.#draining = true
    this.#options.note('stopping')
    services.readiness.startDraining()
    await services.close()
    if (!life.alive) return
    this.#options.note('stopped')
    this.#end()
  }

  /** Null when the connection breaks, or there is nobody to connect to. */
  request({ method, path, headers, body }: Request): Promise<Answer | null> {
    const life = this.#life
    if (!life || !this.up) return Promise.resolve(null)
    return new Promise((resolve) => {
      const forget = life.onEnd(() => resolve(null))
      const answered = (answer: Answer | null) => {
        // The last words of a process that is gone reach nobody.
        if (!life.alive) return
        forget()
        resolve(answer)
      }
      const payload = body === undefined ? {} : { payload: body }
      const inject = () => this.#options.shell.app.inject({ method, url: path, headers, validate: false, ...payload })
      life.reach(() => {
        inject().then(
          ({ statusCode, headers, body }) => {
            answered({ status: statusCode, headers: headers as Record<string, string>, body })
          },
          () => answered(null),
        )
      })
    })
  }

  /** The status of the answer, or null when there was none; `close` hangs up. */
  async stream(
    { path, headers }: Pick<Request, 'path' | 'headers'>,
    client: StreamClient,
  ): Promise<{ status: number; close: () => void } | null> {
    const life = this.#life
    if (!life || !this.up) return null
    const open = () => this.#options.shell.app.inject({ method: 'GET', url: path, headers, ...STREAMED })
    const response = await new Promise<Awaited<ReturnType<typeof open>> | null>((resolve) => {
      life.onEnd(() => resolve(null))
      life.reach(() => {
        open().then(resolve, () => resolve(null))
      })
    })
    if (!response || !life.alive) return null
    const stream = response.stream()
    const close = () => {
      forget()
      response.raw.res.destroy()
      stream.destroy()
    }
    const forget = life.onEnd(close)
    stream.on('error', () => {})
    stream.setEncoding('utf8')
    stream.on('data', (text: string) => {
      if (life.alive) client.onChunk(text)
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
    const life = this.#life
    this.#life = null
    this.#services = null
    life?.end()
  }
}
