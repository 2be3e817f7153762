import { type SseStream, writeSse } from '../../http/streams/sse.ts'
import type { LiveLog } from './live-log.ts'
import {
  comparePositions,
  type LiveCursor,
  type LivePosition,
  RUN_END,
  RUN_START,
  writeCursor,
} from './live-position.ts'

/** Events are joined up to this size before they are written. */
const PIECE_BYTES = 16 * 1024

export interface ViewedRun {
  readonly log: LiveLog
  readonly runSeq: number
  /** No event follows those in the log. */
  readonly isOver: boolean
}

interface ViewerOptions {
  sse: SseStream
  run: ViewedRun
  /** The last event that the client has seen. Null: it wants all. */
  after: LiveCursor | null
}

/**
 * One client that views a run. It reads the run's log at its own pace, so that its buffer holds no more than one piece. A
 * client is disconnected if it reads nothing for 30 s, or if its next event was trimmed from the log. It can resume from
 * its last id.
 */
export class LiveViewer {
  readonly #options: ViewerOptions
  /** The next event in the log. */
  #next: number
  /** Events up to here were seen on an earlier connection, perhaps of another node that was ahead of this one. */
  readonly #seen: LivePosition
  #isWaiting = false

  constructor(options: ViewerOptions) {
    this.#options = options
    const { run, after, sse } = options
    const isSameRun = after?.runSeq === run.runSeq
    this.#seen = isSameRun ? after.position : RUN_START
    this.#next = run.log.indexAfter(this.#seen)
    // Events are missing: of this run, because the log is trimmed, or of another run, because the client left before its end.
    const isTrimmed = comparePositions(this.#seen, run.log.trimmedTo) < 0
    const isForeign = after !== null && !isSameRun && after.position !== RUN_END
    if (isTrimmed || isForeign) {
      const id = writeCursor({ runSeq: run.runSeq, position: run.log.trimmedTo })
      sse.sendPiece(Buffer.from(writeSse({ id, event: 'reset', data: '{}' })))
    }
  }

  /** Sends events of the log as long as the client reads them. */
  pump(): void {
    const { sse, run } = this.#options
    if (sse.isOpen && this.#next < run.log.start) return sse.cut()
    while (sse.isOpen && !this.#isWaiting && this.#next < run.log.end) {
      const piece = this.#takePiece()
      if (piece.byteLength > 0) sse.sendPiece(piece)
      if (sse.isFull) this.#waitForClient()
    }
    if (run.isOver && !this.#isWaiting) sse.end()
  }

  #takePiece(): Buffer {
    const { log } = this.#options.run
    const frames: Buffer[] = []
    let bytes = 0
    for (let event = log.at(this.#next); event && bytes < PIECE_BYTES; event = log.at(this.#next)) {
      // A large frame is sent alone, so that all viewers share it without a copy.
      if (frames.length > 0 && bytes + event.frame.byteLength > PIECE_BYTES) break
      this.#next += 1
      if (comparePositions(event.position, this.#seen) <= 0) continue
      frames.push(event.frame)
      bytes += event.frame.byteLength
    }
    const [first, ...more] = frames
    return first && more.length === 0 ? first : Buffer.concat(frames)
  }

  #waitForClient(): void {
    this.#isWaiting = true
    void this.#options.sse.drained().then(() => {
      this.#isWaiting = false
      this.pump()
    })
  }
}
