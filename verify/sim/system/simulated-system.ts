import type { Database } from '../../../src/db/database.ts'
import { Client } from '../clients/client.ts'
import { perhapsAnswerElsewhere } from '../clients/elsewhere-scenario.ts'
import { ClientObservations } from '../clients/job-scenario.ts'
import { StreamReader } from '../clients/stream-reader.ts'
import { contestRun, startWorkload } from '../clients/workload.ts'
import { signatureHeaders } from '../faults/forged-callback.ts'
import { injectIncident } from '../faults/incidents.ts'
import { type FaultRates, NO_FAULTS, NODE_NAMES, type NodeName, type SeedPlan } from '../faults/plan.ts'
import { watchServiceTime } from '../invariants/service-time.ts'
import { CallbackDelivery } from '../outside/callbacks.ts'
import { type Identity, START_MS } from '../outside/identity.ts'
import { Network } from '../outside/network.ts'
import { SimPushProvider } from '../outside/push-provider.ts'
import { SimRuntime } from '../outside/runtime.ts'
import { WebhookReceivers } from '../outside/webhook-receivers.ts'
import type { Prng } from '../time/prng.ts'
import { Trace } from '../time/trace.ts'
import { drain, VirtualTime } from '../time/virtual-time.ts'
import { type ReusableApp, SimNode } from './node.ts'
import { dependenciesOf, LOSES_LEASES } from './node-dependencies.ts'
import { WEBHOOK_SECRET } from './sim-config.ts'

/** An idle node stops within this time. */
const STOP_MS = 60_000

export interface SimulatedSystemOptions {
  plan: SeedPlan
  prng: Prng
  store: Database
  apps: Record<NodeName, ReusableApp>
  identity: Identity
}

/** A stream with a reader, and the part of the log it shows: one subject's events, one job's, or all. */
export interface FollowedStream {
  reader: StreamReader
  subject: string | null
  jobId: string | null
}

/** Two nodes of the service on one database, everything they talk to, and all their clients. */
export class SimulatedSystem {
  readonly time = new VirtualTime(START_MS)
  readonly trace = new Trace(() => this.time.now)
  readonly observed = new ClientObservations()
  readonly violations: { invariant: string; what: string }[] = []
  readonly streams: FollowedStream[] = []
  /**
   * Threads of the service whose run a client followed as if started elsewhere: two jobs may call the runtime about them.
   */
  readonly contested = new Set<string>()
  /** When two processes called the runtime about one thread at once. */
  readonly overlaps: { thread: string; isLook: boolean; atMs: number }[] = []
  readonly nodes: Record<NodeName, SimNode>
  readonly runtime: SimRuntime
  readonly network: Network
  readonly callbacks: CallbackDelivery
  readonly provider: SimPushProvider
  readonly receivers: WebhookReceivers
  readonly plan: SeedPlan
  readonly identity: Identity
  readonly prng: Prng
  /** Random values for decisions that belong to no single part. */
  readonly sharedPrng: Prng
  jobsSeen = 0
  /** The error of the database's clock. */
  databaseAheadMs = 0
  readonly #options: SimulatedSystemOptions
  #faultRates: FaultRates
  #faultsActive = true
  #blackedOut = false
  /** The factor by which sleeps are too long. Without faults the idle loops may run less often, which saves time. */
  #stretch = 1

  constructor(options: SimulatedSystemOptions) {
    this.#options = options
    const { plan, prng, identity } = options
    this.plan = plan
    this.prng = prng
    this.identity = identity
    this.sharedPrng = prng.split('shared')
    this.#faultRates = plan.faultRates
    const { time, trace } = this
    const common = { time, trace, rates: () => this.#faultRates }
    this.callbacks = new CallbackDelivery({
      ...common,
      prng: prng.split('callbacks'),
      hosted: plan.hosted,
      pickNode: () => this.pickNode(),
      proofOf: (body) =>
        this.sharedPrng.chance(0.5)
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
      isCalm: () => !this.#faultsActive,
      onCreate: (run) => contestRun(this, run),
      onEnd: (run) => {
        this.callbacks.send(run)
        perhapsAnswerElsewhere(this, run)
      },
      onWrongRequest: (what) => this.violate('runtime', what),
    })
    this.network = new Network({
      ...common,
      prng: prng.split('network'),
      runtime: this.runtime,
      jwks: identity.jwks,
      callMs: plan.callMs,
      isResumed: (thread) => (this.observed.resuming.get(thread) ?? 0) > 0,
      onOverlap: (thread, { isLook }) => {
        if (!this.contested.has(thread) && this.#stretch < LOSES_LEASES)
          this.overlaps.push({ thread, isLook, atMs: time.now })
      },
    })
    this.provider = new SimPushProvider({
      ...common,
      prng: prng.split('push'),
      onViolation: (what) => this.violate('push', what),
    })
    this.receivers = new WebhookReceivers({
      time,
      trace,
      prng: prng.split('webhooks'),
      faultsMs: plan.faultsMs,
      phase: () => (this.#faultsActive ? 'faults' : this.isSlowed ? 'later' : 'calm'),
    })
    this.nodes = Object.fromEntries(NODE_NAMES.map((name) => [name, this.#makeNode(name)])) as SimulatedSystem['nodes']
  }

  get faultsActive(): boolean {
    return this.#faultsActive
  }

  /** The time after the faults in which clients watch their jobs. */
  get isCalm(): boolean {
    return !this.#faultsActive && !this.isSlowed
  }

  /** Whether the loops of the nodes sleep longer than they should. */
  get isSlowed(): boolean {
    return this.#stretch > 1
  }

  get crashes(): number {
    return this.trace.counts.get('crash') ?? 0
  }

  get suspensions(): number {
    return this.trace.counts.get('suspend') ?? 0
  }

  get suspendedUntilMs(): number {
    return Math.max(...Object.values(this.nodes).map((node) => node.suspendedUntilMs))
  }

  get lastBootMs(): number {
    return Math.max(...Object.values(this.nodes).map((node) => node.bootedAtMs))
  }

  /** Database faults after which an operation may be done but not answered, or done late. */
  get databaseFaults(): number {
    const { counts } = this.trace
    return ['unavailable', 'unknown', 'stall', 'database_down'].reduce((sum, kind) => sum + (counts.get(kind) ?? 0), 0)
  }

  readonly violate = (invariant: string, what: string): void => {
    this.trace.note('VIOLATION', `${invariant}: ${what}`)
    this.violations.push({ invariant, what })
  }

  /** As a load balancer does, which does not always know yet that a node is down. */
  pickNode(): SimNode {
    const all = NODE_NAMES.map((name) => this.nodes[name])
    const up = all.filter((node) => node.up)
    return this.sharedPrng.pick(up.length === 0 || this.sharedPrng.chance(0.05) ? all : up)
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

  /** Reads a stream from the beginning of the log, with some lost connections. */
  follow(stream: {
    client: Client
    path: string
    subject: string | null
    jobId: string | null
    onEvent?: (text: string) => void
  }): void {
    const { client, path, subject, jobId, onEvent } = stream
    const reader = this.#readerFor(client, path, 0, onEvent)
    this.streams.push({ reader, subject, jobId })
    if (!this.#faultsActive) return reader.start()
    this.time.after(this.sharedPrng.int(0, 10_000), () => reader.start())
    for (let breaks = this.sharedPrng.int(0, 3); breaks > 0; breaks--) {
      this.time.after(this.sharedPrng.int(1_000, this.plan.faultsMs), () => reader.breakOff())
    }
  }

  async begin(): Promise<void> {
    for (const name of NODE_NAMES) await this.nodes[name].boot()
    for (const { atMs, incident } of this.plan.incidents) this.time.after(atMs, () => injectIncident(this, incident))
    startWorkload(this)
    watchServiceTime(this)
  }

  /** All nodes are down at once. */
  blackout(): void {
    this.trace.fault('blackout', `for ${this.plan.blackoutMs} ms`)
    this.killAll()
  }

  /** From here on there are no faults except lost callbacks, and all nodes are up. */
  async stopFaults(stretch: number): Promise<void> {
    this.#faultsActive = false
    this.#blackedOut = false
    this.#faultRates = { ...NO_FAULTS, callbacks: { ...NO_FAULTS.callbacks, drop: this.plan.calm.loss } }
    this.#stretch = stretch
    this.network.runtimeDown = 'no'
    this.network.identityDown = false
    this.provider.refuses = false
    for (const name of NODE_NAMES) {
      const node = this.nodes[name]
      node.databaseDown = false
      node.faults.clear()
      // A start that is in doubt about the database's clock goes on while time passes.
      void node.boot()
      await drain()
    }
    for (const { reader } of this.streams) reader.nudge()
  }

  /** The runtime refuses all calls, as after its API key was revoked. Its callbacks arrive. */
  refuseCalls(): void {
    this.trace.fault('runtime_refused', `for ${this.plan.refusedMs} ms`)
    this.network.runtimeDown = 'forbids'
  }

  /** All nodes are killed at once, until `stopFaults` boots them. */
  killAll(): void {
    this.#faultsActive = false
    this.#blackedOut = true
    for (const name of NODE_NAMES) this.nodes[name].kill()
  }

  /** Stops all nodes in an orderly way. Loops that sleep for hours would otherwise sleep on when the pace changes. */
  async stopAll(): Promise<void> {
    const stopped = Promise.all(NODE_NAMES.map((name) => this.nodes[name].stop()))
    await this.time.runUntil(this.time.now + STOP_MS)
    await stopped
  }

  /** Reads some of the streams again, each from a random place in the log. */
  async replayStreams(): Promise<void> {
    const chosen = this.streams.filter(() => this.sharedPrng.chance(0.7)).slice(0, 3)
    const replays = chosen.map(({ reader, subject, jobId }) => {
      const after = reader.ids.length === 0 ? 0 : this.sharedPrng.pick(reader.ids)
      const again = this.#readerFor(reader.client, reader.path, after)
      again.start()
      return { reader: again, subject, jobId }
    })
    this.streams.push(...replays)
    await this.time.runUntil(this.time.now + 10_000)
  }

  end(): void {
    for (const { reader } of this.streams) reader.stop()
    for (const name of NODE_NAMES) this.nodes[name].instance?.end()
  }

  bootLater(node: SimNode): void {
    const boot = () => {
      if (!this.#blackedOut) void node.boot()
    }
    if (this.#faultsActive) this.time.after(this.sharedPrng.int(100, 20_000), boot)
    else boot()
  }

  #makeNode(name: NodeName): SimNode {
    const { store, apps } = this.#options
    const { time, trace, network, provider, receivers, prng } = this
    const environment = {
      time,
      trace,
      network,
      provider,
      receivers,
      prng,
      store,
      stretch: () => this.#stretch,
      onWrongOrder: (what: string) => this.violate('locks', what),
    }
    return new SimNode({
      time,
      application: apps[name],
      dependenciesOf: (node, instance) =>
        dependenciesOf({ ...environment, node, instance, skewMs: this.plan.skewMs[name], slots: this.plan.slots }),
      note: (what) => trace.note(`node ${name}`, what),
      onTriggered: (point, effect) => {
        if (effect.kind === 'crash') trace.note(`node ${name}`, `dies at ${point}`)
        else trace.fault(effect.kind, `of ${name} at ${point}`)
      },
      onCrash: (node) => {
        trace.fault('crash', name)
        this.bootLater(node)
      },
    })
  }

  #readerFor(client: Client, path: string, after: number, onEvent?: (text: string) => void): StreamReader {
    return new StreamReader({
      client,
      path,
      after,
      time: this.time,
      prng: this.prng.split(`stream ${client.name} ${path}`),
      pickNode: () => this.pickNode(),
      note: (actor, what) => this.trace.note(actor, what),
      ...(onEvent ? { onEvent } : {}),
    })
  }
}
