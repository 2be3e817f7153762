interface Dispatcher {
  destroy(): Promise<void>
}

/** The key under which Node stores the connections of `fetch`. There is no other way to close them. */
const DISPATCHER = Symbol.for('undici.globalDispatcher.1')

/** Closes every connection of `fetch`: a service that stops waits a minute for one that has no request yet. */
export async function closeFetchConnections(): Promise<void> {
  const globals = globalThis as unknown as Record<symbol, Dispatcher>
  const open = globals[DISPATCHER]
  if (!open) return
  const Agent = open.constructor as new () => Dispatcher
  globals[DISPATCHER] = new Agent()
  await open.destroy()
}
