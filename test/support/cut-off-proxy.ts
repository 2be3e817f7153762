import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { atEnd } from './at-end.ts'

/** A proxy between a page and the service, which passes bytes and can be made to stop. */
export class CutOffProxy {
  /** The address of the service now. */
  target: string
  readonly #server: Server
  readonly #pairs = new Set<readonly [Socket, Socket]>()

  constructor(server: Server, target: string) {
    this.#server = server
    this.target = target
    server.on('connection', (near) => this.#join(near))
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  /** From now on open connections transfer no bytes and report no error. New connections work. */
  freeze(): void {
    for (const pair of this.#pairs) for (const socket of pair) socket.unpipe().pause()
  }

  /** Breaks all open connections. */
  cut(): void {
    for (const pair of this.#pairs) for (const socket of pair) socket.destroy()
  }

  close(): void {
    this.cut()
    this.#server.close()
  }

  #join(near: Socket): void {
    const { hostname, port } = new URL(this.target)
    const far = connect({ host: hostname, port: Number(port) })
    const pair = [near, far] as const
    this.#pairs.add(pair)
    near.pipe(far)
    far.pipe(near)
    const end = () => {
      this.#pairs.delete(pair)
      near.destroy()
      far.destroy()
    }
    for (const socket of pair) socket.on('error', end).on('close', end)
  }
}

const proxies: CutOffProxy[] = []
atEnd(() => {
  for (const proxy of proxies) proxy.close()
})

export async function startCutOffProxy(target: string): Promise<CutOffProxy> {
  const server = createServer()
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const proxy = new CutOffProxy(server, target)
  proxies.push(proxy)
  return proxy
}
