import { createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { atEnd } from './at-end.ts'
import { type BusAnswer, type BusCall, BusConnection, type BusValue } from './d-bus.ts'
import { freshFolder } from './program.ts'
import { until } from './until.ts'

const NAME = 'org.freedesktop.Notifications'
const PATH = '/org/freedesktop/Notifications'
/** The connection of the notification server. Programs ignore signals of other connections. */
const OWNER = ':1.1'
const CLOSED_BY_PROGRAM = 3

interface DesktopNotification {
  title: string
  body: string
}

/**
 * The notifications of a Linux desktop, for a browser that has no desktop: a D-Bus with one service, the freedesktop
 * notification server. It records what a user would see, and clicks as a user does.
 */
export class DesktopNotifications {
  readonly #server: Server
  readonly #path = join(freshFolder(), 'bus')
  readonly #sockets = new Set<Socket>()
  readonly #shown = new Map<number, DesktopNotification & { by: BusConnection }>()
  #lastId = 0
  #arrivals = 0

  constructor() {
    this.#server = createServer((socket) => {
      this.#sockets.add(socket)
      socket.on('error', () => socket.destroy()).once('close', () => this.#sockets.delete(socket))
      const connection: BusConnection = new BusConnection(socket, (call) => this.#answer(connection, call))
    })
  }

  /** For a program's `DBUS_SESSION_BUS_ADDRESS`. */
  get address(): string {
    return `unix:path=${this.#path}`
  }

  get shown(): DesktopNotification[] {
    return Array.from(this.#shown.values(), ({ title, body }) => ({ title, body }))
  }

  /** How many were shown, also in place of an earlier one. */
  get arrivals(): number {
    return this.#arrivals
  }

  /** Clicks the notification with this title, as soon as it is shown. */
  async click(title: string): Promise<void> {
    const find = () => [...this.#shown].find(([, notification]) => notification.title === title)
    await until(() => find() !== undefined)
    const found = find()
    if (found) send(found[1].by, 'ActionInvoked', [found[0], 'default'])
  }

  async listen(): Promise<this> {
    await new Promise<void>((resolve) => this.#server.listen(this.#path, resolve))
    return this
  }

  async close(): Promise<void> {
    const closed = new Promise((resolve) => this.#server.close(resolve))
    for (const socket of this.#sockets) socket.destroy()
    await closed
  }

  #answer(by: BusConnection, { member, read }: BusCall): BusAnswer {
    switch (member) {
      case 'Hello':
        return [':1.2']
      case 'NameHasOwner':
        return [read.text() === NAME]
      case 'GetNameOwner':
        return read.text() === NAME ? [OWNER] : undefined
      case 'AddMatch':
      case 'RemoveMatch':
        return []
      case 'GetCapabilities':
        return [['actions', 'body']]
      case 'GetServerInformation':
        return ['test', 'test', '1', '1.2']
      case 'Notify': {
        const [, replacedId, , title, body] = [read.text(), read.number(), read.text(), read.text(), read.text()]
        const id = replacedId || ++this.#lastId
        this.#shown.set(id, { title, body, by })
        this.#arrivals += 1
        return [id]
      }
      case 'CloseNotification': {
        const id = read.number()
        this.#shown.delete(id)
        send(by, 'NotificationClosed', [id, CLOSED_BY_PROGRAM])
        return []
      }
      default:
        return undefined
    }
  }
}

function send(to: BusConnection, member: string, values: readonly BusValue[]): void {
  to.signal({ sender: OWNER, path: PATH, interface: NAME, member, values })
}

export async function startDesktopNotifications(): Promise<DesktopNotifications> {
  const desktop = await new DesktopNotifications().listen()
  atEnd(() => desktop.close())
  return desktop
}
