import type { FastifyReply } from 'fastify'
import type { BlockedUsers } from '../../auth/blocked-users.ts'
import { type Loop, startLoop } from '../../core/async/loop.ts'
import { UnavailableError } from '../../core/errors.ts'
import type { EventFeed } from '../../events/event-feed.ts'
import { isBlockedCaller, lifetimeOf, type StreamCaller } from '../../events/open-stream.ts'
import type { StreamSlots } from '../../events/stream-slots.ts'
import { SseStream } from '../../http/sse.ts'
import { isWatched } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { SlimJob } from '../job-row.ts'
import { LiveChannel } from './live-channel.ts'
import { LiveMemory } from './live-log.ts'
import { type LiveCursor, RUN_END, writeCursor } from './live-position.ts'
import { LiveViewer } from './live-viewer.ts'

const TICK_MS = 1_000
/** For this long after the last viewer, the run stays joined, so that a client that reconnects finds it. */
const GRACE_MS = 5_000

export interface LiveRequest extends StreamCaller {
  job: SlimJob
  /** The last event the client saw. Null: it wants all of the run. */
  after: LiveCursor | null
}

export interface LiveOptions {
  context: JobContext
  feed: EventFeed
  slots: StreamSlots
  blockedUsers: BlockedUsers
  check: (jobId: string) => Promise<void>
  memory?: LiveMemory
}

/** All running jobs that clients of this process view: one channel per run, shared by all its viewers. */
export class LiveStreams {
  readonly #options: LiveOptions
  readonly #memory: LiveMemory
  readonly #channels = new Map<string, LiveChannel>()
  readonly #following = new Set<Promise<void>>()
  readonly #unwatchedSinceMs = new Map<LiveChannel, number>()
  readonly #ticking: Loop
  readonly #viewers = new Set<LiveViewer>()
  #closing = false

  constructor(options: LiveOptions) {
    this.#options = options
    this.#memory = options.memory ?? new LiveMemory()
    const { clock, log } = options.context
    this.#ticking = startLoop({
      clock,
      everyMs: TICK_MS,
      run: async () => this.#tick(),
      onError: (error) => log.warn({ err: error }, 'live.tick_failed'),
    })
  }

  get viewers(): number {
    return this.#viewers.size
  }

  /** The streams of the runtime that are joined now. */
  get upstreams(): number {
    return this.#channels.values().reduce((count, { isJoined }) => count + (isJoined ? 1 : 0), 0)
  }

  get bytes(): number {
    return this.#memory.bytes
  }

  /** The jobs that clients view. */
  get jobIds(): string[] {
    return Array.from(this.#channels.keys(), (key) => key.slice(0, key.indexOf(' ')))
  }

  /** Throws, if at all, before the response begins. */
  open(reply: FastifyReply, request: LiveRequest): void {
    if (this.#closing) throw new UnavailableError('Shutting down')
    const { context, slots } = this.#options
    const { clock } = context
    const release = slots.take(request.caller)
    try {
      this.#begin(new SseStream(reply, clock.now()), request, release)
    } catch (error) {
      release()
      throw error
    }
  }

  #begin(sse: SseStream, request: LiveRequest, release: () => void): void {
    const { context, blockedUsers } = this.#options
    const { clock } = context
    sse.onClose(release)
    const lifetime = lifetimeOf(request, context)
    const channel = this.#channelOf(request.job)
    if (channel === null) {
      const { run_seq: runSeq, status } = request.job
      const id = writeCursor({ runSeq, position: RUN_END })
      sse.send({ id, event: 'end', data: JSON.stringify({ status }) }, clock.now())
      sse.end(lifetime.retryMs, clock.now())
      return
    }
    // Do not keep the whole request, because it contains the job with its documents.
    const { caller, callerKind } = request
    const isBlocked = () => isBlockedCaller({ caller, callerKind }, blockedUsers)
    const onCut = () => context.meter?.count('live_viewers_cut_total')
    const viewer = new LiveViewer({ sse, clock, run: channel, after: request.after, ...lifetime, isBlocked, onCut })
    this.#viewers.add(viewer)
    this.#unwatchedSinceMs.delete(channel)
    channel.add(viewer)
    sse.onClose(() => {
      this.#viewers.delete(viewer)
      channel.remove(viewer)
      if (!channel.isWatched && !channel.isOver) this.#unwatchedSinceMs.set(channel, clock.now())
    })
    viewer.pump()
  }

  /** Ends every stream. The clients reconnect, to another node if there is one. */
  async close(): Promise<void> {
    this.#closing = true
    await this.#ticking.stop()
    for (const channel of this.#channels.values()) channel.close()
    for (const viewer of this.#viewers) viewer.end()
    await Promise.all(this.#following)
  }

  /** Null when the job's run is over. */
  #channelOf(job: SlimJob): LiveChannel | null {
    const key = `${job.id} ${job.run_seq}`
    const existing = this.#channels.get(key)
    if (existing) {
      if (!isWatched(job.status)) existing.deliver()
      return existing
    }
    if (!isWatched(job.status)) return null
    const { context, feed, check } = this.#options
    const forget = () => {
      if (this.#channels.get(key) === channel) this.#channels.delete(key)
      this.#unwatchedSinceMs.delete(channel)
    }
    const channel = new LiveChannel({ context, feed, memory: this.#memory, check, job, onOver: forget })
    this.#channels.set(key, channel)
    const following = channel.follow().finally(() => {
      forget()
      this.#following.delete(following)
    })
    this.#following.add(following)
    return channel
  }

  #tick(): void {
    const nowMs = this.#options.context.clock.now()
    for (const [channel, sinceMs] of this.#unwatchedSinceMs) if (nowMs - sinceMs >= GRACE_MS) this.#drop(channel)
    for (const viewer of this.#viewers) viewer.tick()
  }

  #drop(channel: LiveChannel): void {
    this.#unwatchedSinceMs.delete(channel)
    for (const [key, one] of this.#channels) if (one === channel) this.#channels.delete(key)
    channel.close()
  }
}
