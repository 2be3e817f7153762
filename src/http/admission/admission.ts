import type { Clock } from '../../core/clock.ts'
import { ApiError, UnavailableError } from '../../core/errors.ts'
import { ANSWER_BOUNDS, BODY_BOUNDS, ByteBudget, type ByteOwner, type ExceededBound } from './byte-budget.ts'
import { Overload, type Urgency } from './overload.ts'
import { SpentAddresses } from './spent-addresses.ts'

/** The most requests that one principal may have in progress on one node, until their answers are taken. */
export const CALLER_BOUNDS = { read: 250, change: 50 } as const

/** A large answer is in memory as the answer of the database, as rows, as JSON and as bytes. */
const COPIES = 4

/**
 * Reserved for an answer that may be large, before its handler runs. A page has up to 2 MB. So one principal has at most two
 * pages at a time. On PostgreSQL, two of the four connections that the reads of all callers share are left for others meanwhile. A
 * handler that finds a larger document calls `reserve`.
 */
export const EXPECTED_BYTES = { page: COPIES * 2 * 1024 * 1024, document: 256 * 1024 } as const

/** An answer of at most this size is always sent. */
export const SMALL_ANSWER = 64 * 1024

/**
 * The turns of the event loop between two large answers. A turn accepts one new connection and a large answer makes its
 * turn long, so without other turns new connections would wait for seconds.
 */
export const TURNS_BETWEEN = 10

/** What the requests of one principal hold. */
class Caller {
  readonly owner: ByteOwner & object
  readonly counts = { read: 0, change: 0 }
  /** For large answers that are not ready. */
  reservedBytes = 0
  /** Requests that wait until there is room for their answers, in the order of arrival. */
  readonly waiting: Hold[] = []

  constructor(id: string) {
    this.owner = { kind: 'principal', id }
  }
}

/** Everything that requests hold on this node. Each request has a `Hold`, which is the only way to take and return it. */
export class Admission {
  readonly overload: Overload
  readonly bodies = new ByteBudget(BODY_BOUNDS)
  readonly answers = new ByteBudget(ANSWER_BOUNDS)
  readonly callers = new Map<string, Caller>()
  readonly spentAddresses: SpentAddresses
  /** Callers whose first waiting request may have room now. */
  readonly #next = new Set<Caller>()
  #isAdmitting = false

  constructor({ clock }: { clock: Clock }) {
    this.overload = new Overload({ clock })
    this.spentAddresses = new SpentAddresses(clock)
  }

  /**
   * Lets requests of the caller continue that have room now: one request in several turns of the event loop, and the
   * callers alternate. So small requests run in between, and the large answers of one caller do not delay others for long.
   */
  admitWaiting(caller: Caller): void {
    if (caller.waiting.length > 0) this.#next.add(caller)
    if (this.#isAdmitting || this.#next.size === 0) return
    this.#isAdmitting = true
    setImmediate(() => {
      for (const next of this.#next) {
        this.#next.delete(next)
        if (next.waiting[0]?.continue()) return afterTurns(TURNS_BETWEEN, () => this.#admitNext(next))
      }
      this.#isAdmitting = false
    })
  }

  #admitNext(caller: Caller): void {
    this.#isAdmitting = false
    this.admitWaiting(caller)
  }

  /** For tests: whether everything was returned. */
  get isEmpty(): boolean {
    return this.overload.isEmpty && this.callers.size === 0 && this.bodies.isEmpty && this.answers.isEmpty
  }
}

/** What the route says about a request. */
export interface RequestTraits {
  /** Null: never refused during overload. */
  urgency: Urgency | null
  kind: keyof typeof CALLER_BOUNDS
  /** Whether its answer may be large. */
  expects?: keyof typeof EXPECTED_BYTES | undefined
}

/**
 * All that one request holds. The handler's part is returned when the answer is ready, also if the client has disconnected,
 * because the work went on until then. The rest is returned when the connection has taken the answer or is closed.
 */
export class Hold {
  readonly #admission: Admission
  readonly #traits: RequestTraits
  /** How the request counts as work in progress; null when it does not. */
  #inFlightAs: Urgency | null = null
  #ticket = 0
  #caller: Caller | null = null
  #reservedBytes = 0
  #documentBytes: number = EXPECTED_BYTES.document
  #onRoom: ((hasRoom: boolean) => void) | null = null
  #bodyOwner: ByteOwner = null
  #bodyBytes = 0
  #answerOwner: ByteOwner = null
  #answerBytes = 0
  #isReady = false
  #isTaken = false

  constructor(admission: Admission, traits: RequestTraits) {
    this.#admission = admission
    this.#traits = traits
  }

  get urgency(): Urgency {
    return this.#traits.urgency ?? 'ordinary'
  }

  /** Counts the request as work in progress, and no longer as work of another kind. False if there is too much. */
  enter(urgency = this.#traits.urgency): boolean {
    this.#leaveOverload()
    if (urgency === null) return true
    const ticket = this.#admission.overload.enter(urgency)
    if (ticket === null) return false
    this.#inFlightAs = urgency
    this.#ticket = ticket
    return true
  }

  /** For a handler that rarely waits for the runtime: from now on the request counts as waiting for the runtime. */
  awaitRuntime(): void {
    if (this.#inFlightAs !== null && !this.enter('runtime')) throw new UnavailableError('Too busy')
  }

  /** Counts the request as one of this principal. False if the principal has too many. */
  enterCaller(id: string): boolean {
    const { callers } = this.#admission
    const { kind } = this.#traits
    const caller = callers.get(id) ?? new Caller(id)
    if (caller.counts[kind] >= CALLER_BOUNDS[kind]) return false
    caller.counts[kind] += 1
    callers.set(id, caller)
    this.#caller = caller
    return true
  }

  /**
   * If the answer may be large, waits until the principal has room for it. Calls back when there is room, or with false when
   * the client disconnects while it waits, but not if the request was answered meanwhile.
   */
  awaitRoom(onRoom: (hasRoom: boolean) => void): void {
    const { expects, kind } = this.#traits
    if (expects === undefined || this.#caller === null) return onRoom(true)
    // The client has left. A change is made nevertheless; a read would be for nothing.
    if (this.#isTaken) return onRoom(kind === 'change')
    // The answer to a change repeats the documents of its body.
    this.#reservedBytes = Math.max(EXPECTED_BYTES[expects], this.#bodyBytes)
    const { waiting } = this.#caller
    // A page never runs in the turn that reads requests: two of them would make the turn so long that requests are refused.
    if (expects !== 'page' && waiting.length === 0 && this.#takeRoom(this.#caller)) return onRoom(true)
    this.#onRoom = onRoom
    waiting.push(this)
    this.#admission.admitWaiting(this.#caller)
  }

  /** The handler may load documents of this many bytes. */
  get documentBytes(): number {
    return this.#documentBytes
  }

  /**
   * The handler has found that its answer has this many bytes: waits again until the principal has room for it. Rejects
   * when the client has left.
   */
  async reserve(bytes: number): Promise<void> {
    const caller = this.#caller
    if (this.#isTaken) throw connectionClosed()
    if (bytes <= this.#documentBytes) return
    this.#documentBytes = bytes
    if (caller === null) return
    // While it waits, it holds nothing. Otherwise several requests would wait for each other.
    this.#returnRoom()
    this.#reservedBytes = Math.min(COPIES * bytes, ANSWER_BOUNDS.principal.callerBytes)
    const hasRoom = await new Promise<boolean>((resolve) => {
      this.#onRoom = resolve
      caller.waiting.push(this)
      this.#admission.admitWaiting(caller)
    })
    if (!hasRoom) throw connectionClosed()
  }

  /** The first of the principal's waiting requests continues, if there is room for its answer. */
  continue(): boolean {
    const [onRoom, caller] = [this.#onRoom, this.#caller]
    if (onRoom === null || caller === null || !this.#takeRoom(caller)) return false
    caller.waiting.shift()
    this.#onRoom = null
    onRoom(true)
    return true
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
    const { bodies } = this.#admission
    bodies.add(-this.#bodyBytes, this.#bodyOwner)
    this.#bodyOwner = null
    bodies.add(this.#bodyBytes, null)
  }

  /**
   * The answer is ready: counts its bytes until they are taken, and returns what the handler held. Returns the limit that
   * forbids to send it, or null. The answer to a change is always sent, because the change is made. A principal without
   * another unread answer gets one of any size, because it could never be read otherwise.
   */
  answer(bytes: number | 'streamed', owner: ByteOwner): ExceededBound | null {
    const { answers } = this.#admission
    const { kind, urgency } = this.#traits
    const counted = bytes === 'streamed' ? this.#reservedBytes : bytes
    let bound: ExceededBound | null = null
    if (counted > SMALL_ANSWER && !this.#isTaken) {
      if (kind === 'read' && urgency !== null) bound = answers.boundFor(counted, owner)
      if (bound === 'principal_answer' && answers.bytesOf(owner) === 0) bound = null
      if (bound === null) {
        answers.add(counted, owner)
        this.#answerOwner = owner
        this.#answerBytes += counted
      }
    }
    this.endWork()
    return bound
  }

  /** The handler has ended, or does not begin. */
  endWork(): void {
    if (this.#isReady) return
    this.#isReady = true
    this.#leaveOverload()
    this.#admission.bodies.add(-this.#bodyBytes, this.#bodyOwner)
    this.#bodyBytes = 0
    this.#stopWaiting()
    if (this.#isTaken) this.#leaveCaller()
    else if (this.#reservedBytes > 0) this.#returnRoom()
  }

  /** The connection has taken the answer, or is closed. */
  take(): void {
    this.#isTaken = true
    this.#stopWaiting()?.(false)
    if (this.#isReady) this.#leaveCaller()
  }

  #leaveOverload(): void {
    if (this.#inFlightAs !== null) this.#admission.overload.leave(this.#inFlightAs, this.#ticket)
    this.#inFlightAs = null
  }

  /** Returns the function that continues the request; null if it did not wait. */
  #stopWaiting(): ((hasRoom: boolean) => void) | null {
    const [onRoom, caller] = [this.#onRoom, this.#caller]
    if (onRoom === null || caller === null) return null
    this.#onRoom = null
    this.#reservedBytes = 0
    caller.waiting.splice(caller.waiting.indexOf(this), 1)
    this.#admission.admitWaiting(caller)
    return onRoom
  }

  #returnRoom(): void {
    if (this.#caller === null) return
    this.#caller.reservedBytes -= this.#reservedBytes
    this.#reservedBytes = 0
    this.#admission.admitWaiting(this.#caller)
  }

  #takeRoom(caller: Caller): boolean {
    const heldBytes = caller.reservedBytes + this.#admission.answers.bytesOf(caller.owner)
    if (heldBytes + this.#reservedBytes > ANSWER_BOUNDS.principal.callerBytes) return false
    caller.reservedBytes += this.#reservedBytes
    return true
  }

  #leaveCaller(): void {
    this.#admission.answers.add(-this.#answerBytes, this.#answerOwner)
    this.#answerBytes = 0
    const caller = this.#caller
    if (caller === null) return
    this.#returnRoom()
    this.#caller = null
    caller.counts[this.#traits.kind] -= 1
    if (caller.counts.read + caller.counts.change === 0) this.#admission.callers.delete(caller.owner.id)
  }
}

function afterTurns(turns: number, then: () => void): void {
  if (turns === 0) then()
  else setImmediate(afterTurns, turns - 1, then)
}

export function connectionClosed(): ApiError {
  return new ApiError('invalid_request', 'The connection was closed')
}
