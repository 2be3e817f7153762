import { type Loop, startLoop } from '../core/async/loop.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import type { Database, Transaction } from '../db/database.ts'
import { type EventRow, findHead, findTrimmed, readEvents } from '../events/event-store.ts'
import { insertDeliveries, lockWebhookCursor, moveWebhookCursor, type NewDelivery } from './delivery-store.ts'
import { addMissed, findReceivers, type Receiver } from './endpoint-store.ts'

/** With all endpoints, one transaction writes 50 deliveries for each event. */
const PAGE = 100
/** The longest delay if all wake-ups are lost. */
const POLL_MS = 5_000
/** Events may wait for an older transaction, whose end causes no wake-up. */
const REREAD_AFTER_MS = 100

interface FanoutOptions {
  db: Database
  clock: Clock
  log: Log
}

/**
 * Writes one delivery for each committed event and endpoint that asks for it. It follows the log with a cursor of its own,
 * which moves in the transaction of the deliveries, so that no event is lost or written twice. One node at a time does it.
 */
export class EventFanout {
  readonly #options: FanoutOptions
  readonly #loop: Loop
  /** Without endpoints, an event wakes nothing. */
  #hasReceivers = true

  constructor(options: FanoutOptions) {
    this.#options = options
    this.#loop = startLoop({
      clock: options.clock,
      everyMs: POLL_MS,
      run: (signal) => this.#follow(signal),
      onError: (error) => options.log.warn({ err: error }, 'webhooks.events_not_read'),
    })
  }

  onEvent(): void {
    if (this.#hasReceivers) this.#loop.wake()
  }

  onEndpoint(): void {
    if (this.#hasReceivers) return
    this.#hasReceivers = true
    this.#loop.wake()
  }

  close(): Promise<void> {
    return this.#loop.stop()
  }

  async #follow(signal: AbortSignal): Promise<void> {
    const { db, clock } = this.#options
    this.#hasReceivers = (await findReceivers(db)).length > 0
    if (!this.#hasReceivers) return
    let progress: Progress = 'more'
    while (progress === 'more' && !signal.aborted) {
      progress = await fanOutEvents(this.#options)
      await new Promise(setImmediate)
    }
    if (progress !== 'behind') return
    void clock.sleep(REREAD_AFTER_MS, signal).then(() => this.#loop.wake())
  }
}

/** behind: later events wait for a transaction that may still write an earlier one. */
type Progress = 'more' | 'behind' | 'done'

/** Reads one page of events and writes their deliveries. */
async function fanOutEvents({ db, clock, log }: FanoutOptions): Promise<Progress> {
  const head = await findHead(db)
  const read = await db.transaction(async (tx) => {
    const position = await lockWebhookCursor(tx)
    const receivers = await findReceivers(tx)
    if (position === undefined || receivers.length === 0) return null
    const after = Math.max(position, Math.min(...receivers.map(({ after_seq }) => after_seq)))
    if (after >= head.seq) return null
    // One more shows whether this page is the last one: then the cursor moves to the head.
    const found = await readEvents(tx, { after, upTo: head.seq, filter: {}, limit: PAGE + 1 })
    const isPage = found.length > PAGE
    const events = found.slice(0, PAGE)
    const first = events[0]?.seq ?? head.seq + 1
    const missing = await addMissed(tx, await findMissing(tx, { after, first, receivers }))
    const deliveries = events.flatMap((event) => deliveriesOf(event, receivers))
    await insertDeliveries(tx, { deliveries, atMs: clock.now() })
    await moveWebhookCursor(tx, isPage ? (events.at(-1)?.seq ?? head.seq) : head.seq)
    return { isPage, missing }
  })
  for (const { id, count } of read?.missing ?? []) log.error({ endpointId: id, count }, 'webhooks.events_missing')
  if (read?.isPage) return 'more'
  return head.newest > head.seq ? 'behind' : 'done'
}

/** The positions that were deleted from the log before they were read, for each endpoint that existed then. */
async function findMissing(
  tx: Transaction,
  { after, first, receivers }: { after: number; first: number; receivers: readonly Receiver[] },
): Promise<{ id: string; count: number }[]> {
  const lastDeleted = Math.min(await findTrimmed(tx), first - 1)
  return receivers
    .map(({ id, after_seq }) => ({ id, count: lastDeleted - Math.max(after, after_seq) }))
    .filter(({ count }) => count > 0)
}

/** The deliveries of an event: one for each endpoint that asks for it. */
export function deliveriesOf(event: EventRow, receivers: readonly Receiver[]): NewDelivery[] {
  // A test has a delivery from its beginning.
  if (event.type === 'webhook.test') return []
  const wanting = receivers.filter(({ events, after_seq }) => events.has(event.type) && event.seq > after_seq)
  if (wanting.length === 0) return []
  const data = JSON.parse(event.data) as { type?: string; project_id?: string | null }
  return wanting
    .filter(({ types }) => types === null || event.job_id === null || types.has(data.type ?? ''))
    .filter(({ project_id: wanted }) => wanted === null || data.project_id === undefined || data.project_id === wanted)
    .map(({ id }) => ({ event_seq: event.seq, endpoint_id: id, event_type: event.type }))
}
