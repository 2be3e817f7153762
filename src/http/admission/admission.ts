import type { Clock } from '../../core/clock.ts'
import { ANSWER_BOUNDS, BODY_BOUNDS, ByteBudget, type ByteOwner, type ExceededBound } from './byte-budget.ts'
import { Overload, type Urgency } from './overload.ts'

/** The most requests that one principal may have in progress on one node, until their answers are taken. */
export const CALLER_BOUNDS = {
  read: 250,
  change: 50,
  /** Requests whose answer may be large run a few at a time. The others of the principal wait. */
  large: 4,
} as const

/** An answer of at most this size is always sent. */
export const SMALL_ANSWER = 64 * 1024

export type RequestKind = 'read' | 'change'

/** What the requests of one principal hold. */
interface Caller {
  key: string
  counts: Record<RequestKind | 'large', number>
  /** Requests that wait until fewer with a large answer run. */
  waiting: Hold[]
}

/** Everything that requests hold on this node. Each request has a `Hold`, which is the only way to take and return it. */
export class Admission {
  readonly overload: Overload
  readonly bodies = new ByteBudget(BODY_BOUNDS)
  readonly answers = new ByteBudget(ANSWER_BOUNDS)
  readonly #callers = new Map<string, Caller>()

  constructor({ clock }: { clock: Clock }) {
    this.overload = new Overload({ clock })
  }

  /** Principals with at least one request in progress. */
  get callers(): number {
    return this.#callers.size
  }

  /** The principal with one more request in progress; null if it has too many. */
  enter(key: string, kind: RequestKind): Caller | null {
    const caller = this.#callers.get(key) ?? { key, counts: { read: 0, change: 0, large: 0 }, waiting: [] }
    if (caller.counts[kind] >= CALLER_BOUNDS[kind]) return null
    caller.counts[kind] += 1
    this.#callers.set(key, caller)
    return caller
  }

  leave(caller: Caller, kind: RequestKind): void {
    caller.counts[kind] -= 1
    if (caller.counts.read + caller.counts.change === 0) this.#callers.delete(caller.key)
  }
}

/**
 * All that one request holds. The handler's part is returned when the answer is ready, also if the client has disconnected,
 * because the work went on until then. The rest is returned when the connection has taken the answer or is closed.
 */
export class Hold {
  readonly #admission: Admission
  #urgency: Urgency | null = null
  #ticket = 0
  #caller: Caller | null = null
  #kind: RequestKind = 'read'
  #hasLargePlace = false
  #onLargePlace: (() => void) | null = null
  #bodyOwner: ByteOwner = null
  #bodyBytes = 0
  #answerOwner: ByteOwner = null
  #answerBytes = 0
  #isReady = false
  #isTaken = false

  constructor(admission: Admission) {
    this.#admission = admission
  }

  /** Counts the request as work in progress of this kind, and no longer of another one. False if there is too much. */
  enter(urgency: Urgency): boolean {
    const { overload } = this.#admission
    if (this.#urgency !== null) overload.leave(this.#urgency, this.#ticket)
    this.#urgency = null
    const ticket = overload.enter(urgency)
    if (ticket === null) return false
    this.#urgency = urgency
    this.#ticket = ticket
    return true
  }

  get isInFlight(): boolean {
    return this.#urgency !== null
  }

  /** Counts the request as one of this principal. False if the principal has too many. */
  enterCaller(key: string, kind: RequestKind): boolean {
    this.#caller = this.#admission.enter(key, kind)
    this.#kind = kind
    return this.#caller !== null
  }

  /** For a request whose answer may be large. Calls back at once, or when it is the principal's turn. */
  takeLargePlace(onPlace: () => void): void {
    const caller = this.#caller
    if (caller === null) return onPlace()
    if (caller.counts.large < CALLER_BOUNDS.large) {
      caller.counts.large += 1
      this.#hasLargePlace = true
      return onPlace()
    }
    this.#onLargePlace = onPlace
    caller.waiting.push(this)
  }

  /** Returns the limit that is reached, or null. Bytes that arrive after the answer are discarded, so they are not counted. */
  growBody(bytes: number, owner: ByteOwner): ExceededBound | null {
    if (this.#isReady) return null
    const { bodies } = this.#admission
    const more = bytes - this.#bodyBytes
    const bound = bodies.boundFor(more, owner)
    if (bound !== null) return bound
    bodies.add(more, owner)
    this.#bodyOwner = owner
    this.#bodyBytes = bytes
    return null
  }

  /** The signature over the body is valid: its bytes now count as those of a proven callback. */
  proveBody(): void {
    if (this.#isReady) return
    const { bodies } = this.#admission
    bodies.add(-this.#bodyBytes, this.#bodyOwner)
    this.#bodyOwner = null
    bodies.add(this.#bodyBytes, null)
  }

  /**
   * The answer is ready: returns what the handler held, and counts the bytes of the answer. Returns the limit that is
   * reached, or null. A single answer is sent whatever its size, because it could never be read otherwise.
   */
  answer(bytes: number, owner: ByteOwner): ExceededBound | null {
    this.#endWork()
    if (bytes <= SMALL_ANSWER || this.#isTaken) return null
    const { answers } = this.#admission
    const bound = answers.boundFor(bytes, owner)
    if (bound !== null && answers.bytesOf(owner) > 0) return bound
    answers.add(bytes, owner)
    this.#answerOwner = owner
    this.#answerBytes += bytes
    return null
  }

  /** The connection has taken the answer, or is closed. */
  take(): void {
    this.#isTaken = true
    if (this.#onLargePlace !== null) this.#stopWaiting()
    if (this.#isReady) this.#leave()
  }

  #endWork(): void {
    if (this.#isReady) return
    this.#isReady = true
    const { overload, bodies } = this.#admission
    if (this.#urgency !== null) overload.leave(this.#urgency, this.#ticket)
    this.#urgency = null
    bodies.add(-this.#bodyBytes, this.#bodyOwner)
    this.#bodyBytes = 0
    if (this.#hasLargePlace) this.#passLargePlace()
    if (this.#isTaken) this.#leave()
  }

  #passLargePlace(): void {
    this.#hasLargePlace = false
    const caller = this.#caller as Caller
    const next = caller.waiting.shift()
    if (next === undefined) {
      caller.counts.large -= 1
      return
    }
    next.#hasLargePlace = true
    next.#continue()
  }

  /** The client has disconnected. */
  #stopWaiting(): void {
    const { waiting } = this.#caller as Caller
    waiting.splice(waiting.indexOf(this), 1)
    this.#continue()
  }

  #continue(): void {
    const onPlace = this.#onLargePlace
    this.#onLargePlace = null
    onPlace?.()
  }

  #leave(): void {
    this.#admission.answers.add(-this.#answerBytes, this.#answerOwner)
    this.#answerBytes = 0
    if (this.#caller !== null) this.#admission.leave(this.#caller, this.#kind)
    this.#caller = null
  }
}
