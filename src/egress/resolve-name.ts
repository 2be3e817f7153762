import { lookup, Resolver } from 'node:dns/promises'

export type Resolve = (name: string) => Promise<readonly { address: string; family: number }[]>

interface ResolveOptions {
  /** Absent: those of the system. */
  nameServers?: readonly string[]
  timeoutMs?: number
  /** The resolver of the system, which also knows `/etc/hosts` and search domains. */
  bySystem?: Resolve
}

/** Two tries, the second one twice as long: together about as long as a connection may take. */
const TIMEOUT_MS = 1_500

/**
 * Resolves a name as the system does. The system resolver has few threads for the whole process, and a name whose server
 * is silent holds one for many seconds. So the name servers are asked first, without a thread: a name that they do not
 * answer is not passed to the system.
 */
export async function resolveName(name: string, options: ResolveOptions = {}): ReturnType<Resolve> {
  const { nameServers, timeoutMs = TIMEOUT_MS, bySystem = (one) => lookup(one, { all: true }) } = options
  if (/(?:^|\.)localhost\.?$/i.test(name)) return bySystem(name)
  // A new one each time, because it reads the system's list of name servers only once.
  const resolver = new Resolver({ timeout: timeoutMs, tries: 2 })
  if (nameServers) resolver.setServers(nameServers)
  const asked = await Promise.allSettled([resolver.resolve4(name), resolver.resolve6(name)])
  const silence = asked.find((one) => one.status === 'rejected' && one.reason.code === 'ETIMEOUT')
  if (silence?.status === 'rejected') throw silence.reason
  return bySystem(name)
}
