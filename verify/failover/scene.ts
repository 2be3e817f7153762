import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { systemClock } from '../../src/core/clock.ts'
import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { findProgram } from '../../test/support/binaries.ts'
import { type ServerCommand, ServerProcess } from '../../test/support/server-process.ts'
import { startBalancer } from '../torture/cluster/balancer.ts'
import { NodeProcess } from '../torture/cluster/node-process.ts'
import { call } from '../torture/workload/http-call.ts'

const JOB_TYPES = fileURLToPath(new URL('../../job-types.json', import.meta.url))
const NO_LIMIT = '1000000000'

export type FailoverFigures = [name: string, value: string | number][]

/** Everything a failover run starts; closed in reverse order. */
export class Scene {
  readonly folder = mkdtempSync(join(tmpdir(), 'failover-'))
  readonly nodes: NodeProcess[] = []
  readonly #closers: (() => Promise<unknown>)[] = []

  onClose(close: () => Promise<unknown>): void {
    this.#closers.push(close)
  }

  async close(): Promise<void> {
    for (const close of this.#closers.reverse()) await close()
    rmSync(this.folder, { recursive: true, force: true })
  }

  async startOutsideWorld() {
    const identity = await startIdentityProvider()
    this.onClose(() => identity.close())
    const runtime = await startAgentRuntime()
    this.onClose(() => runtime.close())
    return { identity, runtime }
  }

  /** Starts a server program that is installed on this machine. */
  async startServer(name: string, command: (folder: string) => Omit<ServerCommand, 'command'>): Promise<ServerProcess> {
    const program = findProgram(name) ?? `/usr/sbin/${name}`
    const server = new ServerProcess(`failover-${name}`)
    this.onClose(() => server.stop())
    await server.start({ command: program, ...command(server.folder) })
    return server
  }

  /** Starts the identity provider, the runtime, and two nodes behind a balancer. Resolves when the balancer uses both. */
  async startBalancedNodes(settings: Record<string, string>) {
    const { identity, runtime } = await this.startOutsideWorld()
    const balancer = await startBalancer()
    this.onClose(() => balancer.close())
    await this.startNodes({
      ISSUER_URL: identity.issuer,
      RUNTIME_URL: runtime.url,
      PUBLIC_URL: balancer.url,
      ...settings,
    })
    for (const node of this.nodes) {
      balancer.add(node)
      await balancer.untilReady(node.name, 30_000)
    }
    return { identity, balancer }
  }

  /** Starts two nodes, one after the other. Resolves when both are ready. */
  async startNodes(settings: Record<string, string>): Promise<void> {
    for (const name of ['node-1', 'node-2']) {
      const common = {
        JOB_TYPES_FILE: JOB_TYPES,
        WEBHOOK_SECRET: 'the-secret-of-the-failover',
        RATE_LIMIT_AUTHENTICATED: NO_LIMIT,
        RATE_LIMIT_UNAUTHENTICATED: NO_LIMIT,
        SHUTDOWN_TIMEOUT_MS: '8000',
      }
      const node = new NodeProcess(name, { settings: { ...common, ...settings }, folder: this.folder })
      this.nodes.push(node)
      this.onClose(async () => {
        node.kill()
        await node.gone()
      })
      await node.start()
      await untilReady(node.url)
    }
  }

  /** What the nodes have logged. */
  get logs(): string {
    return this.nodes.map(({ name }) => readFileSync(join(this.folder, `${name}.log`), 'utf8')).join('')
  }

  /** How often the nodes logged this event. */
  count(event: string): number {
    return this.logs.split(`"${event}"`).length - 1
  }
}

/** Longer than a start takes on a busy machine. */
const READY_TIMEOUT_MS = 90_000

export async function untilReady(url: string): Promise<void> {
  const deadlineMs = Date.now() + READY_TIMEOUT_MS
  for (;;) {
    const status = await call(`${url}/readyz`, { timeoutMs: 2_000 }).then(
      (answer) => answer.status,
      () => 0,
    )
    if (status === 200) return
    if (Date.now() > deadlineMs) throw new Error(`${url} was not ready within ${READY_TIMEOUT_MS} ms`)
    await systemClock.sleep(100)
  }
}
