import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

export interface RawAnswer {
  status: number
  headers: Record<string, string>
  body: string
}

/** Opens a bare connection, for bytes that no client library would send. */
export async function openSocket(url: string): Promise<Socket> {
  const { hostname, port } = new URL(url)
  const socket = connect({ host: hostname.replace(/^\[|\]$/g, ''), port: Number(port) })
  // A server that refuses early closes while the client still writes; only its answer matters.
  socket.on('error', () => {})
  await once(socket, 'connect')
  return socket
}

/** Shorter than the server's own timeouts: a connection that only these would close counts as not closed. */
const CLOSE_WITHIN_MS = 20_000

/** Writes these bytes and reads until the other side closes; fails when that takes too long. */
export async function rawExchange(url: string, bytes: string | Buffer): Promise<RawAnswer[]> {
  const socket = await openSocket(url)
  socket.write(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes)
  return parseAnswers(await readToEnd(socket))
}

export async function readToEnd(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = []
  socket.on('data', (chunk: Buffer) => chunks.push(chunk))
  const late = setTimeout(() => socket.destroy(new Error('The connection was not closed')), CLOSE_WITHIN_MS)
  await once(socket, 'close')
  clearTimeout(late)
  if (socket.errored?.message === 'The connection was not closed') throw socket.errored
  return Buffer.concat(chunks)
}

/** Parses the answers in order, by their declared lengths. Skips interim answers and fails on anything else. */
export function parseAnswers(bytes: Buffer): RawAnswer[] {
  const answers: RawAnswer[] = []
  for (let rest = bytes; rest.length > 0; ) {
    const end = rest.indexOf('\r\n\r\n')
    const [statusLine = '', ...lines] = rest.toString('latin1', 0, end).split('\r\n')
    const status = Number(/^HTTP\/1\.1 (\d{3}) /.exec(statusLine)?.[1])
    if (end < 0 || Number.isNaN(status)) throw new Error(`Not an answer: ${rest.toString('latin1').slice(0, 200)}`)
    const headers = Object.fromEntries(
      lines.map((line) => [line.split(':', 1)[0]?.toLowerCase(), line.replace(/^[^:]*: ?/, '')]),
    )
    const length = status < 200 ? 0 : Number(headers['content-length'])
    const body = rest.subarray(end + 4, end + 4 + length).toString()
    if (status >= 200) answers.push({ status, headers, body })
    rest = rest.subarray(end + 4 + length)
  }
  return answers
}
