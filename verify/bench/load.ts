import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { performance } from 'node:perf_hooks'

export interface Load {
  port: number
  /** Whole requests, sent in turn: one for each user. */
  requests: readonly Buffer[]
  connections: number
  durationMs: number
  /** Each connection sends one request in this time; without it, the next as soon as the last is answered. */
  everyMs?: number
}

export interface Sample {
  requests: number
  requestsPerSecond: number
  p50Ms: number
  p99Ms: number
  /** The share of time in which the generator was busy. Near 1, the generator limits the result. */
  generatorBusy: number
}

const HEAD_END = '\r\n\r\n'
const OK = 'HTTP/1.1 200 '
const STALL_MS = 5_000

/**
 * Keeps every connection busy with one request at a time, and fails unless every response is a 200. It uses the socket
 * directly: a generator that parses headers into objects costs as much as the servers.
 */
export async function applyLoad({ port, requests, connections, durationMs, everyMs = 0 }: Load): Promise<Sample> {
  const sockets = await Promise.all(Array.from({ length: connections }, () => open(port)))
  const latenciesMs: number[] = []
  let turn = 0
  const next = () => requests[turn++ % requests.length] as Buffer
  const before = performance.eventLoopUtilization()
  const startedMs = performance.now()
  try {
    const run = { next, untilMs: startedMs + durationMs, everyMs, latenciesMs }
    await Promise.all(sockets.map((socket) => drive(socket, run)))
  } finally {
    for (const socket of sockets) socket.destroy()
  }
  const seconds = (performance.now() - startedMs) / 1_000
  latenciesMs.sort((a, b) => a - b)
  const quantile = (share: number) => latenciesMs[Math.floor(latenciesMs.length * share)] ?? Number.NaN
  return {
    requests: latenciesMs.length,
    requestsPerSecond: latenciesMs.length / seconds,
    p50Ms: quantile(0.5),
    p99Ms: quantile(0.99),
    generatorBusy: performance.eventLoopUtilization(before).utilization,
  }
}

/** Sends each request once. Rejects unless every response is a 200. */
export async function sendAll({ port, requests, connections }: Omit<Load, 'durationMs'>): Promise<void> {
  const sockets = await Promise.all(Array.from({ length: connections }, () => open(port)))
  const left = requests.values()
  const run = { next: () => left.next().value, untilMs: Number.POSITIVE_INFINITY, everyMs: 0, latenciesMs: [] }
  try {
    await Promise.all(sockets.map((socket) => drive(socket, run)))
  } finally {
    for (const socket of sockets) socket.destroy()
  }
}

async function open(port: number): Promise<Socket> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true })
  await once(socket, 'connect')
  return socket.setTimeout(STALL_MS)
}

interface Run {
  /** Undefined when there are no more requests. */
  next: () => Buffer | undefined
  untilMs: number
  everyMs: number
  latenciesMs: number[]
}

function drive(socket: Socket, run: Run): Promise<void> {
  return new Promise((resolve, reject) => {
    let sentMs = 0
    let head = ''
    let bodyLeft = -1
    const send = () => {
      const request = run.next()
      if (request === undefined) return resolve()
      sentMs = performance.now()
      socket.write(request)
    }
    socket.on('data', (chunk: Buffer) => {
      if (bodyLeft < 0) {
        head += chunk.toString('latin1')
        const end = head.indexOf(HEAD_END)
        if (end < 0) return
        if (!head.startsWith(OK)) return reject(new Error(`Not a 200:\n${head.slice(0, 1_000)}`))
        bodyLeft = contentLength(head) - (head.length - end - HEAD_END.length)
        head = ''
      } else {
        bodyLeft -= chunk.length
      }
      if (bodyLeft > 0) return
      bodyLeft = -1
      const nowMs = performance.now()
      run.latenciesMs.push(nowMs - sentMs)
      const nextMs = Math.max(nowMs, sentMs + run.everyMs)
      if (nextMs >= run.untilMs) resolve()
      else if (nextMs === nowMs) send()
      else setTimeout(send, nextMs - nowMs)
    })
    socket.on('timeout', () => reject(new Error(`No answer for ${STALL_MS} ms`)))
    socket.on('error', reject)
    socket.on('close', () => reject(new Error('The server closed the connection')))
    send()
  })
}

function contentLength(head: string): number {
  const length = /\r\ncontent-length: (\d+)\r\n/i.exec(head)?.[1]
  if (length === undefined) throw new Error(`No Content-Length:\n${head.slice(0, 1_000)}`)
  return Number(length)
}
