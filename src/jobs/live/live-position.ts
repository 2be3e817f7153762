/**
 * The position of an event among the events of its run: the two numbers of the runtime's id (-1 if the second is missing),
 * and a count for events with the same id. It derives from the runtime's ids alone, so that every node gives an event the
 * same position.
 */
export type LivePosition = readonly [first: number, second: number, count: number]

/** Before the first and after the last event of a run. */
export const RUN_START: LivePosition = [-1, 0, 0]
export const RUN_END: LivePosition = [Number.POSITIVE_INFINITY, 0, 0]

/** The last event that a viewer has seen. */
export interface LiveCursor {
  /** Which run of the job: a resumed job has several. */
  runSeq: number
  position: LivePosition
}

/** The JS server counts: `17`. The hosted runtime uses a time and a count: `1781663454132-0`. */
const RUNTIME_ID = /^(\d{1,15})(?:-(\d{1,15}))?$/
const CURSOR = /^(\d{1,9})-(?:(start|end)|(\d{1,15})(?:-(\d{1,15}))?(?:\.(\d{1,6}))?)$/

/** Null for an id that has no place in an order. */
export function readRuntimeId(id: string | null): [number, number] | null {
  const [, first, second = '-1'] = RUNTIME_ID.exec(id ?? '') ?? []
  return first === undefined ? null : [Number(first), Number(second)]
}

/** Null for a text that is no cursor. */
export function readLiveCursor(text: string): LiveCursor | null {
  const [, runSeq, edge, first, second = '-1', count = '0'] = CURSOR.exec(text) ?? []
  if (runSeq === undefined) return null
  if (edge !== undefined) return { runSeq: Number(runSeq), position: edge === 'start' ? RUN_START : RUN_END }
  return { runSeq: Number(runSeq), position: [Number(first), Number(second), Number(count)] }
}

export function writeCursor({ runSeq, position }: LiveCursor): string {
  const [first, second, count] = position
  if (first < 0) return `${runSeq}-start`
  if (first === Number.POSITIVE_INFINITY) return `${runSeq}-end`
  return `${runSeq}-${first}${second < 0 ? '' : `-${second}`}${count === 0 ? '' : `.${count}`}`
}

/** Negative when `a` comes before `b`. */
export function comparePositions(a: LivePosition, b: LivePosition): number {
  if (a[0] !== b[0]) return a[0] < b[0] ? -1 : 1
  return a[1] - b[1] || a[2] - b[2]
}
