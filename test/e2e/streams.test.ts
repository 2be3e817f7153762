import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import { test } from 'node:test'
import { freshFolder } from '../support/program.ts'
import { type Served, sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { until } from '../support/until.ts'

const WANTED_STREAMS = 10_000
const STREAMS_PER_USER = 50
const AT_ONCE = 50
const MAX_KB_PER_STREAM = 20
/** For all else that both processes have open. */
const SPARE_FILES = 1_000

const JOB_TYPES = { types: { report: { assistant_id: 'report', output_key: 'report', may_pause: false } } }
/** Limits the young generation of the heap: its growth is not a cost of streams. */
const NODE_OPTIONS = '--max-semi-space-size=16'
const NO_LIMITS = { RATE_LIMIT_AUTHENTICATED: '1000000', RATE_LIMIT_UNAUTHENTICATED: '1000000' }

/** A cheap stream client: one socket and the text received after the head. */
interface Listener {
  socket: Socket
  text: string
}

/** Each stream takes a file here and one there, and both processes have the same limit. */
function affordableStreams(): number {
  const [, files = '0'] = /Max open files\s+(\d+)/.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
  return Math.min(WANTED_STREAMS, Number(files) - SPARE_FILES)
}

function residentKb({ program }: Served): number {
  const [, kb = '0'] = /^VmRSS:\s+(\d+) kB/m.exec(readFileSync(`/proc/${program.pid}/status`, 'utf8')) ?? []
  return Number(kb)
}

/** Opens a stream. Retries after a refusal, so that a busy machine does not fail the test. */
async function listen(served: Served, token: string): Promise<Listener> {
  let listener: Listener | undefined
  await until(async () => {
    listener = await connectOnce(served, token)
    return listener !== undefined
  })
  assert.ok(listener)
  return listener
}

async function connectOnce({ url }: Served, token: string): Promise<Listener | undefined> {
  const { hostname, port } = new URL(url)
  const socket = connect({ host: hostname, port: Number(port) })
  const listener: Listener = { socket, text: '' }
  const begun = Promise.withResolvers<Listener | undefined>()
  socket.setEncoding('latin1').on('data', (text: string) => {
    listener.text += text
    // The stream is live once it has named its place.
    if (/\nid: \d+\n\n/.test(listener.text)) begun.resolve(listener)
    if (!/^HTTP\/1\.1 (?!200)/.test(listener.text)) return
    socket.destroy()
    if (listener.text.startsWith('HTTP/1.1 503')) begun.resolve(undefined)
    else begun.reject(new Error(listener.text))
  })
  socket.on('error', begun.reject)
  socket.write(`GET /v1/events HTTP/1.1\r\nhost: ${hostname}\r\nauthorization: Bearer ${token}\r\n\r\n`)
  return begun.promise
}

async function open(served: Served, tokens: readonly string[]): Promise<Listener[]> {
  const listeners: Listener[] = []
  const waiting = [...tokens]
  const work = async () => {
    for (let token = waiting.pop(); token !== undefined; token = waiting.pop()) {
      listeners.push(await listen(served, token))
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, work))
  return listeners
}

async function close(listeners: readonly Listener[]): Promise<void> {
  await Promise.all(
    listeners.map(({ socket }) => {
      socket.destroy()
      return once(socket, 'close')
    }),
  )
}

const eventsOf = ({ text }: Listener) => Array.from(text.matchAll(/^event: (\S+)$/gm), ([, type]) => type)

test('ten thousand idle streams fit in one process, and a settled job reaches its own and no other', async (t) => {
  const folder = freshFolder()
  writeFileSync(join(folder, 'job-types.json'), JSON.stringify(JOB_TYPES))
  // No runtime listens there: the job ends by its callback.
  const RUNTIME_URL = `http://127.0.0.1:${await freePort()}`
  const served = await startServe({
    folder,
    settings: { ...NO_LIMITS, NODE_OPTIONS, RUNTIME_URL, SHUTDOWN_TIMEOUT_MS: '4000' },
  })
  const count = affordableStreams()
  if (count < WANTED_STREAMS) t.diagnostic(`only ${count} streams: this machine allows no more open files`)
  const issuer = await sharedIssuer()
  const mint = (sub: string) => issuer.mint({ sub })
  const crowd = Array.from({ length: Math.ceil(count / STREAMS_PER_USER) }, (_, n) => mint(`user-${n}`))
  const tokens = Array.from({ length: count - 1 }, (_, n) => crowd[Math.floor(n / STREAMS_PER_USER)] ?? '')

  // Warm up first: the memory for the first requests is not a cost of streams.
  await close(await open(served, crowd))
  for (let n = 0; n < 5; n++) {
    await Promise.all(crowd.map((token) => served.request('GET', '/v1/users/me', { token })))
  }
  const before = residentKb(served)
  const others = await open(served, tokens)
  const owner = await listen(served, mint('owner'))
  // The process may not have collected the garbage of opening them yet.
  let kbPerStream = Number.NaN
  await until(() => {
    kbPerStream = (residentKb(served) - before) / count
    return kbPerStream < MAX_KB_PER_STREAM
  })
  t.diagnostic(`${kbPerStream.toFixed(1)} KB for each of ${count} idle streams`)

  const body = { type: 'report', input: {} }
  const started = await served.request<{ id: string; thread_id: string }>('POST', '/jobs', {
    token: mint('owner'),
    body,
  })
  assert.equal(started.status, 202, started.text)
  const { id: job_id, thread_id } = started.body
  const callback = {
    thread_id,
    run_id: randomUUID(),
    metadata: { job_id },
    status: 'success',
    values: { report: 'done' },
  }
  const answer = await served.request<{ outcome: string }>('POST', '/webhooks/jobs/report', { body: callback })
  assert.equal(answer.body.outcome, 'applied', answer.text)
  await until(() => eventsOf(owner).includes('job.completed'))
  const last = mint('last')
  const witness = await listen(served, last)
  await served.request('POST', '/jobs', { token: last, body })
  // A later event has arrived, so all earlier events have arrived too.
  await until(() => eventsOf(witness).includes('job.created'))
  assert.deepEqual(eventsOf(owner), ['job.created', 'job.completed'])
  assert.deepEqual(others.flatMap(eventsOf), [])

  served.program.signal('SIGTERM')
  await until(() => others.every(({ text }) => text.includes('retry: ')))
  for (const { socket } of [...others, owner, witness]) socket.destroy()
  assert.equal((await served.program.untilEnded()).code, 0)
})
