import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'

/** Forwards connections to a port of this machine, and can reset all of them at once. */
export async function startTcpFaultProxy(targetPort: number): Promise<TcpFaultProxy> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return new TcpFaultProxy(server, targetPort)
}

export class TcpFaultProxy {
  readonly port: number
  readonly #server: Server
  readonly #sockets = new Set<Socket>()

  constructor(server: Server, targetPort: number) {
    this.port = (server.address() as AddressInfo).port
    this.#server = server
    server.on('connection', (near) => {
      const far = connect({ host: '127.0.0.1', port: targetPort, noDelay: true })
      near.setNoDelay(true)
      this.#join(near, far)
      this.#join(far, near)
    })
  }

  /** How many connections were cut. */
  cut(): number {
    const cut = this.#sockets.size / 2
    for (const socket of this.#sockets) socket.resetAndDestroy()
    return Math.ceil(cut)
  }

  async close(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve))
    this.cut()
    await closed
  }

  #join(from: Socket, to: Socket): void {
    this.#sockets.add(from)
    from.on('error', () => {})
    from.on('close', () => {
      this.#sockets.delete(from)
      to.destroy()
    })
    from.pipe(to)
  }
}
