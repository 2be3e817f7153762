import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

/** A client of an event stream that reads the raw socket, so that ten thousand of them need little CPU time. */
export interface Viewer {
  /** The `data` of each event so far. */
  readonly events: string[]
  close(): void
}

export async function openViewer(
  { port, token }: { port: number; token: string },
  onEvent: (data: string) => void = () => undefined,
): Promise<Viewer> {
  const socket: Socket = connect({ port, host: '127.0.0.1', noDelay: true })
  await once(socket, 'connect')
  socket.write(
    `GET /v1/events HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\nauthorization: Bearer ${token}\r\n\r\n`,
  )
  const events: string[] = []
  let text = ''
  let isOpen: () => void = () => undefined
  let isRefused: (error: Error) => void = () => undefined
  const opened = new Promise<void>((resolve, reject) => {
    isOpen = resolve
    isRefused = reject
  })
  socket.setEncoding('latin1')
  socket.on('error', isRefused)
  socket.on('data', (chunk: string) => {
    text += chunk
    if (text.startsWith('HTTP/1.1 200 ')) isOpen()
    else if (text.length > 12) isRefused(new Error(`Not a 200:\n${text.slice(0, 500)}`))
    for (let at = text.indexOf('\ndata: '); at >= 0; at = text.indexOf('\ndata: ')) {
      const end = text.indexOf('\n\n', at)
      if (end < 0) return
      const data = text.slice(at + '\ndata: '.length, end)
      text = `HTTP/1.1 200 ${text.slice(end)}`
      events.push(data)
      onEvent(data)
    }
  })
  await opened
  return { events, close: () => void socket.destroy() }
}
