import type { Database } from '../../../src/db/database.ts'
import { Client } from '../clients/client.ts'
import { Promises } from '../clients/job-scenario.ts'
import { StreamReader } from '../clients/stream-reader.ts'
import { contest, populate } from '../clients/workload.ts'
import { signatureHeaders } from '../faults/forged-callback.ts'
import { happen } from '../faults/incidents.ts'
import { CALM, type Dials, NODE_NAMES, type NodeName, type SeedPlan } from '../faults/plan.ts'
import { CallbackSender } from '../outside/callbacks.ts'
import { type Identity, START_MS } from '../outside/identity.ts'
import { Network } from '../outside/network.ts'
import { PushProvider } from '../outside/push-provider.ts'
import { SimRuntime } from '../outside/runtime.ts'
import type { Prng } from '../time/prng.ts'
import { Trace } from '../time/trace.ts'
import { VirtualTime } from '../time/virtual-time.ts'
import { type Shell, SimNode } from './node.ts'
import { surround } from './node-dependencies.ts'
import { WEBHOOK_SECRET } from './sim-config.ts'

export interface WorldOptions {
  plan: SeedPlan
  prng: Prng
  store: Database
  shells: Record<NodeName, Shell>
  identity: Identity
}

/** A stream somebody follows, and which part of the log it shows: one subject's, one job's, or all. */
export interface FollowedStream {
  reader: StreamReader
  subject: string | null
  jobId: string | null
}

/** Two processes of the service on one store, the others around them, and everybody who uses it. */
export class World {
  readonly time = new VirtualTime(START_MS)
  readonly trace = new Trace(() => this.time.now)
  readonly promises = new Promises()
  readonly violations: { invariant: string; what: string }[] = []
  readonly streams: FollowedStream[] = []
  /** Threads of ours whose run somebody followed as another's: two jobs may ask about them. */
  readonly contested = new Set<string>()
  readonly nodes: Record<NodeName, SimNode>
  readonly runtime: SimRuntime
  readonly network: Network
  readonly callbacks: CallbackSender
  readonly provider: PushProvider
  readonly plan: SeedPlan
  readonly identity: Identity
  readonly prng: Prng
  /** For what no part decides by itself. */
  readonly luck: Prng
  jobsSeen = 0
  readonly #options: WorldOptions
  #dials: Dials
  #chaos = true
  #dark = false
  /** Idle processes may oversleep: once nothing goes wrong any more, there is no point in watching them tick. */
  #stretch = 1

  constructor(options: WorldOptions) {
    this.#options = options
    const { plan, prng, identity } = options
    this.plan = plan
    this.prng = prng
    this.identity = identity
    this.luck = prng.split('luck')
    this.#dials = plan.dials
    const { time, trace } = this
    const common = { time, trace, dials: () => this.#dials }
    this.callbacks = new CallbackSender({
      ...common,
      prng: prng.split('callbacks'),
      hosted: plan.hosted,
      pickNode: () => this.pickNode(),
      proofOf: (body) =>
        this.luck.chance(0.5)
          ? { 'x-webhook-secret': WEBHOOK_SECRET }
          : signatureHeaders({ secret: WEBHOOK_SECRET, body, atMs: time.now }),
      onViolation: this.violate,
    })
    this.runtime = new SimRuntime({
      ...common,
      prng: prng.split('runtime'),
      theme: plan.theme,
      hosted: plan.hosted,
      refusesWebhooks: plan.refusesWebhooks,
      forgets: plan.forgets,
      onCreate: (run) => contest(this, run),
      onEnd: (run) => this.callbacks.send(run),
      onWrongRequest: (what) => this.violate('runtime', what),
    })
    this.network = new Network({
      ...common,
      prng: prng.split('network'),
      runtime: this.runtime,
      jwks: identity.jwks,
      onOverlap: (thread) => {
        if (!this.contested.has(thread)) this.violate('I7', `two ask the runtime about thread ${thread} at once`)
      },
    })
    this.provider = new PushProvider({
      ...common,
      prng: prng.split('push'),
      onViolation: (what) => this.violate('push', what),
    })
    this.nodes = Object.fromEntries(NODE_NAMES.map((name) => [name, this.#makeNode(name)])) as World['nodes']
  }

  get chaos(): boolean {
    return this.#chaos
  }

  get crashes(): number {
    return this.trace.counts.get('crash') ?? 0
  }

  get suspensions(): number {
    return this.trace.counts.get('suspend') ?? 0
  }

  /** Those that may leave something done and unsaid, or done late. */
  get databaseFaults(): number {
    const { counts } = this.trace
    return ['unavailable', 'unknown', 'stall', 'database_down'].reduce((sum, kind) => sum + (counts.get(kind) ?? 0), 0)
  }

  readonly violate = (invariant: string, what: string): void => {
    this.trace.note('VIOLATION', `${invariant}: ${what}`)
    this.violations.push({ invariant, what })
  }

  /** The load balancer does not always know yet who is gone. */
  pickNode(): SimNode {
    const all = NODE_NAMES.map((name) => this.nodes[name])
    const up = all.filter((node) => node.up)
    return this.luck.pick(up.length === 0 || this.luck.chance(0.05) ? all : up)
  }

  client(name: string, token: string): Client {
    return new Client({
      name,
      token,
      time: this.time,
      prng: this.prng.split(`client ${name}`),
      pickNode: () => this.pickNode(),
      note: (actor, what) => this.trace.note(actor, what),
      onViolation: this.violate,
    })
  }

  /** Somebody follows a stream from the beginning of the log, and loses the connection now and then. */
  follow(stream: { client: Client; path: string; subject: string | null; jobId: string | null }): void {
    const { client, path, subject, jobId } = stream
    const reader = this.#readerFor(client, path, 0)
    this.streams.push({ reader, subject, jobId })
    this.time.after(this.luck.int(0, 10_000), () => reader.start())
    for (let breaks = this.luck.int(0, 3); breaks > 0; breaks--) {
      this.time.after(this.luck.int(1_000, this.plan.chaosMs), () => reader.breakOff())
    }
  }

  async begin(): Promise<void> {
    for (const name of NODE_NAMES) await this.nodes[name].boot()
    for (const { atMs, incident } of this.plan.incidents) this.time.after(atMs, () => happen(this, incident))
    populate(this)
  }

  /** Everything is down at once: nobody is there to hear or to ask. */
  blackOut(): void {
    this.trace.fault('blackout', `for ${this.plan.blackoutMs} ms`)
    this.#chaos = false
    this.#dark = true
    for (const name of NODE_NAMES) this.nodes[name].kill()
  }

  /** From here on everything works, and everybody is up. */
  async calm(stretch: number): Promise<void> {
    this.#chaos = false
    this.#dark = false
    this.#dials = CALM
    this.#stretch = stretch
    this.network.runtimeDown = 'no'
    this.network.identityDown = false
    this.provider.refuses = false
    for (const name of NODE_NAMES) {
      const node = this.nodes[name]
      node.databaseDown = false
      node.faults.clear()
      await node.boot()
    }
    for (const { reader } of this.streams) reader.nudge()
  }

  /** The same streams once more, each from a place somewhere in the log. */
  async replayStreams(): Promise<void> {
    const chosen = this.streams.filter(() => this.luck.chance(0.7)).slice(0, 3)
    const replays = chosen.map(({ reader, subject, jobId }) => {
      const after = reader.ids.length === 0 ? 0 : this.luck.pick(reader.ids)
      const again = this.#readerFor(reader.client, reader.path, after)
      again.start()
      return { reader: again, subject, jobId }
    })
    this.streams.push(...replays)
    await this.time.runUntil(this.time.now + 10_000)
  }

  end(): void {
    for (const { reader } of this.streams) reader.stop()
    for (const name of NODE_NAMES) this.nodes[name].life?.end()
  }

  bootLater(node: SimNode): void {
    const boot = () => {
      if (!this.#dark) void node.boot()
    }
    if (this.#chaos) this.time.after(this.luck.int(100, 20_000), boot)
    else boot()
  }

  #makeNode(name: NodeName): SimNode {
    const { store, shells } = this.#options
    const { time, trace, network, provider, prng } = this
    const outside = { time, trace, network, provider, prng, store, stretch: () => this.#stretch }
    return new SimNode({
      time,
      shell: shells[name],
      surround: (node, life) =>
        surround({ ...outside, node, life, skewMs: this.plan.skewMs[name], places: this.plan.places }),
      note: (what) => trace.note(`node ${name}`, what),
      onStrike: (point, effect) => {
        if (effect.kind === 'crash') trace.note(`node ${name}`, `dies at ${point}`)
        else trace.fault(effect.kind, `of ${name} at ${point}`)
      },
      onCrash: (node) => {
        trace.fault('crash', name)
        this.bootLater(node)
      },
    })
  }

  #readerFor(client: Client, path: string, after: number): StreamReader {
    return new StreamReader({
      client,
      path,
      after,
      time: this.time,
      prng: this.prng.split(`stream ${client.name} ${path}`),
      pickNode: () => this.pickNode(),
      note: (actor, what) => this.trace.note(actor, what),
    })
  }
}
