import type { FastifyReply } from 'fastify'
import type { Principal } from '../../auth/principal.ts'
import type { EventFeed } from '../../events/event-feed.ts'
import type { OpenStreams } from '../../http/streams/open-streams.ts'
import { isWatched } from '../job.ts'
import type { JobContext } from '../job-context.ts'
import type { SlimJob } from '../job-row.ts'
import { LiveChannel } from './live-channel.ts'
import { LiveMemory } from './live-log.ts'
import { type LiveCursor, RUN_END, writeCursor } from './live-position.ts'
import { LiveViewer } from './live-viewer.ts'

interface LiveRequest {
  principal: Principal
  job: SlimJob
  /** The last event the client saw. Null: it wants all of the run. */
  after: LiveCursor | null
}

interface LiveOptions {
  context: JobContext
  feed: EventFeed
  openStreams: OpenStreams
  check: (jobId: string) => Promise<void>
  memory?: LiveMemory
}

/** All running jobs that clients of this process view: one channel per run, shared by all its viewers. */
export class LiveStreams {
  readonly #options: LiveOptions
  readonly #memory: LiveMemory
  readonly #channels = new Map<string, LiveChannel>()
  readonly #following = new Set<Promise<void>>()
  #viewers = 0

  constructor(options: LiveOptions) {
    this.#options = options
    this.#memory = options.memory ?? new LiveMemory()
  }

  get viewers(): number {
    return this.#viewers
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
  open(reply: FastifyReply, { principal, job, after }: LiveRequest): void {
    const { context, openStreams } = this.#options
    const onCut = () => context.meter?.count('live_viewers_cut_total')
    const sse = openStreams.reserve(principal, { onCut })
    sse.begin(reply)
    const channel = this.#channelOf(job)
    if (channel === null) {
      const id = writeCursor({ runSeq: job.run_seq, position: RUN_END })
      sse.send({ id, event: 'end', data: JSON.stringify({ status: job.status }) })
      sse.end()
      return
    }
    const viewer = new LiveViewer({ sse, run: channel, after })
    this.#viewers += 1
    channel.add(viewer)
    sse.onRelease(() => {
      this.#viewers -= 1
      channel.remove(viewer)
    })
    viewer.pump()
  }

  /** Ends every stream. The clients reconnect, to another node if there is one. */
  async close(): Promise<void> {
    await this.#options.openStreams.close()
    for (const channel of this.#channels.values()) channel.close()
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
    }
    const channel = new LiveChannel({ context, feed, memory: this.#memory, check, job, onOver: forget })
    this.#channels.set(key, channel)
    const following = channel.follow().finally(() => this.#following.delete(following))
    this.#following.add(following)
    return channel
  }
}
