import { createServer } from 'node:net'
import type { Sandbox, SandboxPorts } from '../../sandbox/sandbox.ts'

const DEFAULT_PORT = 8080
const MAX_PORT = 65_535

/** The service's port. Chosen before anything starts, because the sandbox needs the address of the service. */
export async function choosePort(asked: string | null): Promise<string> {
  if (asked !== null && asked !== '0') return asked
  return String(await freePort(asked === null ? DEFAULT_PORT : 0))
}

/** The sandbox uses the ports after the requested one, so that its addresses and tokens stay valid after a restart. */
export function sandboxPorts(asked: string | undefined): SandboxPorts {
  const base = Number(asked?.trim() || DEFAULT_PORT)
  const after = (count: number) => (base > 0 && base + count <= MAX_PORT ? base + count : 0)
  return {
    start: after(1),
    identity: after(2),
    runtime: after(3),
    push: after(4),
    pushTls: after(5),
    receiver: after(6),
  }
}

/** Where `dev-env` finds the start page of a `dev` with the same `PORT`. */
export function startPortOf(asked: string | undefined): number {
  return sandboxPorts(asked).start
}

/** A line for each part that runs on another port than usual, because another program uses the usual port. */
export function portNotices(asked: string | undefined, url: string, sandbox: Sandbox): string[] {
  const ports = sandboxPorts(asked)
  const wanted: [string, number, string][] = [
    ['API', asked === undefined ? DEFAULT_PORT : 0, url],
    ['Start here', ports.start, sandbox.start.url],
    ['Tokens', ports.identity, sandbox.identity.url],
    ['Runtime', ports.runtime, sandbox.runtime.url],
    ['Push', ports.push, sandbox.push.plainUrl],
    ['Webhooks', ports.receiver, sandbox.receiver.url],
  ]
  return wanted
    .filter(([, port, actual]) => port !== 0 && Number(new URL(actual).port) !== port)
    .map(([name, port]) => `Port ${port} is in use by another program: "${name}" runs on another port.`)
}

/** The preferred port, or any free port when another program uses it. */
function freePort(preferred: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer()
    probe.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE' && preferred !== 0) resolve(freePort(0))
      else reject(error)
    })
    probe.listen(preferred, '127.0.0.1', () => {
      const { port } = probe.address() as { port: number }
      probe.close(() => resolve(port))
    })
  })
}
