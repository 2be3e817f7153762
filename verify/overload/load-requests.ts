import type { Kind } from './load-result.ts'

/** The generator's configuration: where to send, and with which tokens. */
export interface LoadPlan {
  port: number
  tokens: readonly string[]
  webhookSecret: string
  /** How many of each kind in one round. */
  mix: Record<Kind, number>
  /** Callbacks are for the runs 0, 1, …, whose ids end with the number. */
  runs: number
}

const DIGITS = 8
/** The ids of runs and threads are UUIDs: one of these, and the number in eight digits. */
export const RUN_PREFIX = '11111111-1111-4111-8111-1111'
export const THREAD_PREFIX = '22222222-2222-4222-8222-2222'

export interface LoadRequest {
  kind: Kind
  bytes: Buffer
  /** The number of a callback's run. */
  run: number
}

/** Prepares whole requests; only the number of a run is filled in later. This saves time on cores shared with the service. */
export class LoadRequests {
  readonly #reads: readonly Buffer[]
  readonly #starts: readonly Buffer[]
  readonly #callback: Buffer
  readonly #numberAt: readonly number[]
  readonly #runs: number
  readonly #mix: readonly Kind[]
  #turn = 0
  #run = 0

  constructor({ tokens, webhookSecret, runs, mix }: LoadPlan) {
    this.#mix = spread(mix)
    this.#reads = tokens.map((token) => Buffer.from(`GET /v1/projects?limit=20 HTTP/1.1\r\n${head(token)}\r\n`))
    this.#starts = tokens.map((token) => post('/jobs', head(token), { type: 'report', input: { title: 'Load', n: 1 } }))
    this.#callback = post('/webhooks/jobs/report', `host: x\r\nx-webhook-secret: ${webhookSecret}\r\n`, callbackBody())
    this.#numberAt = indexesOf(this.#callback, '0'.repeat(DIGITS))
    this.#runs = runs
  }

  next(): LoadRequest {
    const kind = this.#mix[this.#turn % this.#mix.length] as Kind
    const user = this.#turn++ % this.#reads.length
    if (kind !== 'callback') {
      return { kind, bytes: (kind === 'read' ? this.#reads : this.#starts)[user] as Buffer, run: -1 }
    }
    if (this.#run >= this.#runs) throw new Error('The runs ran out: seed more')
    const run = this.#run++
    const bytes = Buffer.from(this.#callback)
    const digits = String(run).padStart(DIGITS, '0')
    for (const at of this.#numberAt) bytes.write(digits, at, 'latin1')
    return { kind, bytes, run }
  }
}

export function runId(run: number): string {
  return `${RUN_PREFIX}${String(run).padStart(DIGITS, '0')}`
}

function callbackBody(): object {
  const number = '0'.repeat(DIGITS)
  return {
    run_id: `${RUN_PREFIX}${number}`,
    thread_id: `${THREAD_PREFIX}${number}`,
    status: 'success',
    metadata: { graph_id: 'report' },
    kwargs: { input: { topic: 'sales' }, webhook: 'http://x/webhooks/jobs/report?token=t' },
    values: { report: { title: 'Load', text: 'x'.repeat(400) } },
  }
}

function head(token: string): string {
  return `host: x\r\naccept: application/json\r\nauthorization: Bearer ${token}\r\n`
}

function post(path: string, headers: string, body: object): Buffer {
  const text = JSON.stringify(body)
  return Buffer.from(
    `POST ${path} HTTP/1.1\r\n${headers}content-type: application/json\r\ncontent-length: ${text.length}\r\n\r\n${text}`,
  )
}

function indexesOf(buffer: Buffer, text: string): number[] {
  const found: number[] = []
  for (let at = buffer.indexOf(text); at >= 0; at = buffer.indexOf(text, at + 1)) found.push(at)
  return found
}

/** Spreads the kinds evenly, so that every short part of the load has the whole mix. */
function spread(shares: Record<Kind, number>): Kind[] {
  const size = shares.read + shares.start + shares.callback
  const places = (Object.entries(shares) as [Kind, number][]).flatMap(([kind, count]) =>
    Array.from({ length: count }, (_, n) => ({ kind, at: ((n + 0.5) * size) / count })),
  )
  return places.sort((a, b) => a.at - b.at).map(({ kind }) => kind)
}
