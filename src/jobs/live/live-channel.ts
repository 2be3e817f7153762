import { backoffMs } from '../../core/async/backoff.ts'
import type { EventFeed, Subscriber } from '../../events/event-feed.ts'
import { writeSse } from '../../http/streams/sse.ts'
import type { RunStreamEvent } from '../../runtime/run-stream.ts'
import { isWatched, type JobStatus } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { JobRow } from '../job-row.ts'
import { findRunState } from '../job-store.ts'
import { toLiveEvents } from './live-event.ts'
import { LiveLog, type LiveMemory } from './live-log.ts'
import { comparePositions, type LivePosition, RUN_END, readRuntimeId, writeCursor } from './live-position.ts'
import type { LiveViewer, ViewedRun } from './live-viewer.ts'

/** The pause before the job is read again for the start of its run. */
const START_POLL = { baseMs: 50, maxMs: 2_000 }
/** The pause before a broken stream is joined again. */
const REJOIN = { baseMs: 200, maxMs: 5_000 }
/** A job may end before the last of its output has arrived. */
const DRAIN_MS = 2_000
/** If a stream is silent for this long after the end of the job, it is treated as frozen and joined once more. */
const STUCK_MS = 500
/** If there is no stream to join, only the end of the job matters, and the end interrupts the pause. */
const OFF_MS = 10_000
/** For this long after the last viewer, the run stays joined, so that a client that reconnects finds it. */
const GRACE_MS = 5_000

interface ChannelOptions {
  context: JobContext
  feed: EventFeed
  memory: LiveMemory
  /** Asks the runtime about the job now. */
  check: (jobId: string) => Promise<void>
  job: Pick<JobRow, 'id' | 'type' | 'thread_id' | 'run_id' | 'run_seq' | 'status'>
  /** Called when the channel takes no more viewers: after the last event, or when it is closed. */
  onOver: () => void
}

/**
 * One run that clients of this node view. It joins the runtime's stream once for all of them, again whenever the connection
 * breaks, and stores the output in memory only. Viewers see the end of the committed job: the end of the runtime's stream
 * only causes a check.
 */
export class LiveChannel implements ViewedRun, Subscriber {
  readonly log: LiveLog
  readonly runSeq: number
  readonly #viewers = new Set<LiveViewer>()
  readonly #options: ChannelOptions
  readonly #closing = new AbortController()
  /** Aborts when the time for the last output is over. */
  readonly #draining = new AbortController()
  #pause = new AbortController()
  /** Aborts when a viewer comes back in time. */
  #grace = new AbortController()
  /** Ends the current join. */
  #joining = new AbortController()
  #runId: string | null
  /** It may change until the run is known. */
  #threadId: string
  #endStatus: JobStatus | null = null
  #lastUpstreamId: string | null = null
  #isJoined = false
  #isOver = false

  constructor(options: ChannelOptions) {
    this.#options = options
    this.runSeq = options.job.run_seq
    this.#runId = options.job.run_id
    this.#threadId = options.job.thread_id
    this.log = new LiveLog(options.memory)
  }

  get isOver(): boolean {
    return this.#isOver
  }

  get isJoined(): boolean {
    return this.#isJoined
  }

  /** Resolves when the run is over or the channel is closed. */
  async follow(): Promise<void> {
    const { feed, job, context } = this.#options
    let unsubscribe = () => {}
    try {
      ;({ unsubscribe } = await feed.subscribe({ jobId: job.id }, this))
      await this.#refresh()
      await this.#untilStarted()
      await this.#stream()
    } catch (error) {
      // The viewers reconnect and start again.
      context.log.warn({ jobId: job.id, err: error }, 'live.failed')
    } finally {
      unsubscribe()
      if (!this.#closing.signal.aborted) this.#finish()
      this.#isOver = true
      this.close()
      this.#freeMemory()
    }
  }

  add(viewer: LiveViewer): void {
    this.#viewers.add(viewer)
    this.#grace.abort()
  }

  remove(viewer: LiveViewer): void {
    this.#viewers.delete(viewer)
    if (this.#isOver) this.#freeMemory()
    else if (this.#viewers.size === 0 && !this.#closing.signal.aborted) void this.#closeAfterGrace()
  }

  async #closeAfterGrace(): Promise<void> {
    const grace = new AbortController()
    this.#grace = grace
    await this.#options.context.clock.sleep(GRACE_MS, grace.signal)
    if (!grace.signal.aborted) this.close()
  }

  /** A viewer may still read the log of a run that is over. */
  #freeMemory(): void {
    if (this.#viewers.size === 0) this.#options.memory.remove(this.log)
  }

  /** Called when the job has changed. */
  deliver(): void {
    this.#refresh().catch((error: unknown) => {
      this.#options.context.log.warn({ jobId: this.#options.job.id, err: error }, 'live.not_refreshed')
    })
  }

  close(): void {
    this.#closing.abort()
    this.#pause.abort()
    this.#grace.abort()
    this.#options.onOver()
  }

  /** If the job has a newer run, this run ended with a question, which was answered meanwhile. */
  async #refresh(): Promise<void> {
    const { context, job } = this.#options
    const row = await findRunState(context.db, job.id)
    if (this.#endStatus !== null) return
    if (row && row.run_seq === this.runSeq) {
      // Two reads may finish in the wrong order, but a started run stays started.
      if (this.#runId === null) this.#threadId = row.thread_id
      this.#runId ??= row.run_id
      if (isWatched(row.status)) return
    }
    this.#endStatus = row === undefined ? 'cancelled' : row.run_seq === this.runSeq ? row.status : 'awaiting_input'
    this.#pause.abort()
    void this.#endDrain()
  }

  async #endDrain(): Promise<void> {
    const { clock } = this.#options.context
    const [joining, lastId] = [this.#joining, this.#lastUpstreamId]
    await clock.sleep(STUCK_MS, this.#closing.signal)
    if (this.#lastUpstreamId === lastId) joining.abort()
    await clock.sleep(DRAIN_MS - STUCK_MS, this.#closing.signal)
    this.#draining.abort()
    this.#pause.abort()
  }

  get #isWaiting(): boolean {
    return this.#endStatus === null && !this.#closing.signal.aborted
  }

  async #untilStarted(): Promise<void> {
    for (let attempt = 0; this.#isWaiting && this.#runId === null; attempt++) {
      await this.#sleep(backoffMs(START_POLL, attempt, this.#options.context.random))
      await this.#refresh()
    }
  }

  /** Joins the stream until the job has ended and its output has arrived, or until nothing more can be expected. */
  async #stream(): Promise<void> {
    const { context, job, check } = this.#options
    for (let failures = 0; !this.#closing.signal.aborted && !this.#draining.signal.aborted; failures++) {
      const before = this.#lastUpstreamId
      const joining = new AbortController()
      this.#joining = joining
      const outcome = await this.#join(joining.signal)
      if (this.#closing.signal.aborted) return
      if (outcome !== 'off') context.meter?.count('live_joins_total', { outcome })
      if (this.#endStatus === null) {
        if (outcome === 'ended') await check(job.id)
        // Also read the job after a broken stream: the read at the wake-up for its end may have failed.
        await this.#refresh()
      }
      if (joining.signal.aborted) continue
      if (this.#endStatus !== null && (outcome !== 'broken' || this.#lastUpstreamId === null)) return
      if (this.#lastUpstreamId !== before) failures = 0
      await this.#sleep(outcome === 'off' ? OFF_MS : backoffMs(REJOIN, failures, context.random))
    }
  }

  async #join(joining: AbortSignal): Promise<'ended' | 'broken' | 'off'> {
    const { context, job } = this.#options
    const { runtime } = context
    const modes = context.types.get(job.type)?.live ?? []
    if (runtime === null || this.#runId === null || modes.length === 0) return 'off'
    const signal = AbortSignal.any([this.#closing.signal, this.#draining.signal, joining])
    const repeats = { id: '', count: 0 }
    try {
      const after = this.#lastUpstreamId ?? '-1'
      for await (const events of runtime.streamRun(this.#threadId, this.#runId, { after, signal })) {
        this.#isJoined = true
        for (const event of events) {
          repeats.count = event.id === repeats.id ? repeats.count : 0
          repeats.id = event.id ?? ''
          repeats.count += this.#take(event, { modes, count: repeats.count })
        }
        for (const viewer of this.#viewers) viewer.pump()
      }
      return joining.aborted ? 'broken' : 'ended'
    } catch (error) {
      context.log.debug({ jobId: job.id, err: error }, 'live.upstream_broken')
      return 'broken'
    } finally {
      this.#isJoined = false
    }
  }

  /**
   * Returns the number of live events that it created. An event that an earlier connection already delivered is skipped.
   */
  #take(
    upstream: RunStreamEvent,
    { modes, count }: { modes: Parameters<typeof toLiveEvents>[1]; count: number },
  ): number {
    const id = readRuntimeId(upstream.id)
    // Skip an event without an id: no viewer could resume after it.
    if (id === null) return 0
    const events = toLiveEvents(upstream, modes)
    for (const [n, { event, data }] of events.entries()) {
      const position: LivePosition = [...id, count + n]
      if (comparePositions(position, this.log.newest) > 0) this.#append(position, event, data)
    }
    this.#lastUpstreamId = upstream.id
    return events.length
  }

  #append(position: LivePosition, event: string, data: string): void {
    const id = writeCursor({ runSeq: this.runSeq, position })
    this.log.append({ position, frame: Buffer.from(writeSse({ id, event, data })) })
  }

  #finish(): void {
    if (this.#endStatus !== null) this.#append(RUN_END, 'end', JSON.stringify({ status: this.#endStatus }))
    this.#isOver = true
    for (const viewer of this.#viewers) viewer.pump()
  }

  /** Ends early when the job ends or the channel is closed. */
  async #sleep(ms: number): Promise<void> {
    if (this.#closing.signal.aborted) return
    this.#pause = new AbortController()
    await this.#options.context.clock.sleep(ms, this.#pause.signal)
  }
}
