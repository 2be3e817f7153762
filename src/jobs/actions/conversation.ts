import { ApiError } from '../../core/errors.ts'
import type { JsonText } from '../../core/json/json-text.ts'
import { isJsonObject, type Json } from '../../core/json.ts'
import { asStorableText } from '../../core/text.ts'
import { type Transaction, TransactionConflict } from '../../db/database.ts'
import { findTurn } from '../job-store.ts'
import { lockThread, type ThreadRow } from '../thread-store.ts'
import { findUnfinishedOn } from '../uncommon-jobs.ts'

/** What a new turn does while a job on its thread is unfinished. */
export const ON_BUSY = ['reject', 'enqueue', 'interrupt'] as const
export type OnBusy = (typeof ON_BUSY)[number]

/** How many turns may wait on a thread. */
const MAX_WAITING = 5

/** The thread of the conversation that this job is part of, for its owner's next turn of the same type. */
export async function findThreadToContinue(
  tx: Transaction,
  { continues, type, owner }: { continues: string; type: string; owner: string },
): Promise<string> {
  const turn = await findTurn(tx, continues)
  if (!turn || turn.created_by !== owner) throw new ApiError('not_found', 'No such job to continue')
  // Another graph would misread the state of the thread.
  if (turn.type !== type) throw new ApiError('conflict', `The job to continue is of the type ${turn.type}`)
  return turn.thread_id
}

interface WantedTurn {
  threadId: string
  onBusy: OnBusy
  /** Jobs are locked before their thread, and changed after that. */
  interruption: { lock: (ids: readonly string[]) => Promise<void>; cancelAll: () => Promise<void> }
  nowMs: number
}

const BEING_DELETED = 'The conversation is being deleted'
/** A deletion that takes longer was interrupted by a crash. */
const DELETED_WITHIN_MS = 10 * 60_000

function isBeingDeleted({ deleting_at }: ThreadRow, nowMs: number): boolean {
  return deleting_at !== null && nowMs < deleting_at + DELETED_WITHIN_MS
}

/** Locks the thread of a run that a new job follows. The thread may not be known yet. */
export async function lockFollowed(tx: Transaction, threadId: string, nowMs: number): Promise<void> {
  const thread = await lockThread(tx, threadId)
  if (thread && isBeingDeleted(thread, nowMs)) throw new ApiError('conflict', BEING_DELETED)
}

/**
 * Locks the thread for a new turn. If a job on it is unfinished, the turn is refused or waits. Two concurrent requests
 * cannot both begin a turn at once: the lock is held until the new job is committed.
 */
export async function takeTurn(
  tx: Transaction,
  { threadId, onBusy, interruption, nowMs }: WantedTurn,
): Promise<{ thread: ThreadRow; waits: boolean }> {
  const interrupts = onBusy === 'interrupt'
  const locked = interrupts ? (await findUnfinishedOn(tx, threadId)).map(({ id }) => id) : []
  if (interrupts) await interruption.lock(locked)
  const thread = await lockThread(tx, threadId)
  if (!thread || isBeingDeleted(thread, nowMs)) throw new ApiError('conflict', BEING_DELETED)
  // Another transaction moved the conversation to a new thread.
  if (thread.replaced_by !== null) throw new TransactionConflict()
  if (interrupts) {
    const added = (await findUnfinishedOn(tx, threadId)).some(({ id }) => !locked.includes(id))
    if (added) throw new TransactionConflict()
    await interruption.cancelAll()
  }
  const unfinished = await findUnfinishedOn(tx, threadId)
  if (unfinished.length === 0) return { thread, waits: false }
  if (onBusy === 'reject') throw new ApiError('conflict', 'A job on the thread is unfinished')
  if (unfinished.filter(({ waits }) => waits === 1).length >= MAX_WAITING) {
    throw new ApiError('conflict', `${MAX_WAITING} turns already wait on the thread`)
  }
  return { thread, waits: true }
}

/** A longer input is not searched for a title. */
const MAX_TITLED_INPUT = 64 * 1024
const MAX_TITLE_LENGTH = 80

/** The first words of the first turn: its first message, or else the first text of its input. */
export function titleOf(input: JsonText): string | null {
  if (input.text.length > MAX_TITLED_INPUT) return null
  const text = firstTextIn(JSON.parse(input.text) as Json)
    ?.replace(/\s+/g, ' ')
    .trim()
  return text ? asStorableText(text, MAX_TITLE_LENGTH) : null
}

function firstTextIn(input: Json | undefined): string | undefined {
  if (typeof input === 'string') return input
  if (Array.isArray(input)) return firstOf(input)
  if (!isJsonObject(input)) return undefined
  // A message also has texts that are not its content, such as its role.
  if ('messages' in input) return firstTextIn(input.messages)
  return 'content' in input ? firstTextIn(input.content) : firstOf(Object.values(input))
}

function firstOf(values: readonly (Json | undefined)[]): string | undefined {
  for (const value of values) {
    const text = firstTextIn(value)
    if (text) return text
  }
  return undefined
}
