import type { Clock } from '../../core/clock.ts'

/** The last step of the database's clock, the same for all nodes. All offsets are relative to the database's time. */
export type ClockStep = {
  /** Increases with each step. */
  version: number
  /** The service's time at the step. It returns to the database's slowly. */
  offset_ms: number
  /** The calendar's time at the step. It is the database's again once the step has lasted for a minute. */
  calendar_offset_ms: number
  /** The database's time after the step. */
  stepped_at: number
}

/** What a query answered. The database read its clock between `askedAtElapsedMs` and the answer. */
export interface ClockReading {
  databaseMs: number
  askedAtElapsedMs: number
  step: ClockStep
}

/** A smaller difference is no step, but the error of a clock, and is corrected at once. */
export const STEP_MS = 1_000
const CALENDAR_WAITS_MS = 60_000
/** After a step forward the service's time runs faster by this share. A small error of a node's clock is corrected as slowly. */
const FASTER = 0.005
/** After a step back it runs slower: nothing comes early, and everything happens at most a tenth later. */
const SLOWER = 0.1

/** The length in the service's time that is never shorter than this in real time: for deadlines. */
export function neverShorter(ms: number): number {
  return ms === 0 ? 0 : Math.ceil(ms * (1 + 2 * FASTER)) + STEP_MS
}

/**
 * The time that all nodes share: the database's, without its steps. A step forward or back changes `now` at no moment, so
 * that deadlines, leases and retries keep their length. `calendar` follows a step that lasts for a minute. `elapsed` and
 * `sleep` are the node's own.
 */
export class ServiceClock implements Clock {
  readonly #node: Clock
  /** The database's time when the node's `elapsed` was 0. */
  #originMs: number
  #step: ClockStep
  #latestMs = Number.NEGATIVE_INFINITY
  /** By how much the time may be corrected forward now. It grows slowly, so that deadlines do not come early. */
  #creditMs = STEP_MS
  #followedAtElapsedMs: number

  constructor(node: Clock, { databaseMs, step }: ClockReading) {
    this.#node = node
    this.#originMs = databaseMs - node.elapsed()
    this.#followedAtElapsedMs = node.elapsed()
    this.#step = step
  }

  /** Never decreases, except when `follow` finds that this node alone was ahead. */
  now(): number {
    this.#latestMs = Math.max(this.#latestMs, Math.floor(serviceTimeAt(this.#databaseMs, this.#step)))
    return this.#latestMs
  }

  calendar(): number {
    return Math.floor(this.#databaseMs + calendarOffset(this.#step, this.#databaseMs))
  }

  elapsed(): number {
    return this.#node.elapsed()
  }

  sleep(ms: number, signal?: AbortSignal): Promise<void> {
    return this.#node.sleep(ms, signal)
  }

  get version(): number {
    return this.#step.version
  }

  /** How far the service's time is ahead of the database's; negative: behind. */
  get offsetMs(): number {
    return Math.round(serviceOffset(this.#step, this.#databaseMs))
  }

  /** By how much the service's time of the reading is ahead of this clock's; 0 if they are consistent. */
  differenceOf({ databaseMs, askedAtElapsedMs, step }: ClockReading): number {
    const ownMs = serviceTimeAt(this.#databaseMs, this.#step)
    const earliestMs = serviceTimeAt(databaseMs, step)
    const latestMs = earliestMs + this.#node.elapsed() - askedAtElapsedMs
    return Math.min(Math.max(ownMs, earliestMs), latestMs) - ownMs
  }

  /** Whether the reading is consistent with this clock if the step noted since is left out. */
  fitsWithoutStep(reading: ClockReading): boolean {
    return Math.abs(this.differenceOf({ ...reading, step: this.#step })) <= STEP_MS
  }

  /** The step that explains the reading: with it the service's time is `nowMs`, and the calendar does not change. */
  stepTo({ databaseMs, step }: ClockReading, nowMs = serviceTimeAt(this.#databaseMs, this.#step)): ClockStep {
    return {
      version: step.version + 1,
      offset_ms: unlessSmall(nowMs - databaseMs),
      calendar_offset_ms: unlessSmall(this.calendar() - databaseMs),
      stepped_at: databaseMs,
    }
  }

  /**
   * Takes over the time of the reading. A time that is consistent with it is kept, so that the clock does not jump.
   * `mayJump`: this node alone was wrong, and takes over the others' time at once.
   */
  follow({ databaseMs, askedAtElapsedMs, step }: ClockReading, { mayJump = false } = {}): void {
    const elapsedMs = this.#node.elapsed()
    const grownMs = (elapsedMs - this.#followedAtElapsedMs) * FASTER
    this.#creditMs = Math.min(STEP_MS, this.#creditMs + grownMs)
    this.#followedAtElapsedMs = elapsedMs
    const keptMs =
      step.version === this.#step.version
        ? this.#originMs
        : serviceTimeAt(this.#databaseMs, this.#step) - serviceOffset(step, databaseMs) - elapsedMs
    const wantedMs = Math.min(Math.max(keptMs, databaseMs - elapsedMs), databaseMs - askedAtElapsedMs)
    this.#originMs = mayJump ? wantedMs : Math.min(wantedMs, keptMs + this.#creditMs)
    if (!mayJump) this.#creditMs -= Math.max(0, this.#originMs - keptMs)
    this.#step = step
    const isAhead = this.#latestMs - serviceTimeAt(this.#databaseMs, step) > STEP_MS
    if (isAhead) this.#latestMs = Number.NEGATIVE_INFINITY
  }

  get #databaseMs(): number {
    return this.#originMs + this.#node.elapsed()
  }
}

/** The service's time when the database's clock shows this. */
export function serviceTimeAt(databaseMs: number, step: ClockStep): number {
  return databaseMs + serviceOffset(step, databaseMs)
}

function serviceOffset({ offset_ms, stepped_at }: ClockStep, databaseMs: number): number {
  const sinceMs = Math.max(0, databaseMs - stepped_at)
  return offset_ms > 0 ? Math.max(0, offset_ms - sinceMs * SLOWER) : Math.min(0, offset_ms + sinceMs * FASTER)
}

function calendarOffset({ calendar_offset_ms, stepped_at }: ClockStep, databaseMs: number): number {
  return databaseMs - stepped_at < CALENDAR_WAITS_MS ? calendar_offset_ms : 0
}

function unlessSmall(offsetMs: number): number {
  return Math.abs(offsetMs) <= STEP_MS ? 0 : Math.round(offsetMs)
}
