import { parseJson } from '../errors.ts'

/** The place of a chat: its current job, and how far the job's output was shown. */
export interface ChatPlace {
  jobId: string
  /** The live output of the job's next run begins after this cursor. */
  after: string | null
  /** The answer was shown to its end. */
  isDone: boolean
  /** The run that pauses with the question that was shown last. */
  pausedRun: string | null
}

export type PlaceStorage = Pick<Storage, 'getItem' | 'setItem'>

/** The place of each chat. Survives page loads if there is a storage. */
export class ChatPlaces {
  readonly #storage: PlaceStorage | undefined
  readonly #known = new Map<string, ChatPlace>()

  constructor(storage: PlaceStorage | undefined) {
    this.#storage = storage ?? ownStorage()
  }

  get(chatId: string): ChatPlace | undefined {
    return this.#known.get(chatId) ?? readPlace(parseJson(this.#storage?.getItem(keyOf(chatId)) ?? ''))
  }

  set(chatId: string, place: ChatPlace): void {
    this.#known.set(chatId, place)
    try {
      this.#storage?.setItem(keyOf(chatId), JSON.stringify(place))
    } catch {
      // If the storage is full, the chat only does not resume after a reload.
    }
  }
}

/** Also reads a place that the transport wrote into a message's metadata. */
export function readPlace(value: unknown): ChatPlace | undefined {
  const { jobId, after = null, isDone, pausedRun = null } = (value ?? {}) as Partial<ChatPlace>
  return typeof jobId === 'string' ? { jobId, after, isDone: isDone === true, pausedRun } : undefined
}

const keyOf = (chatId: string) => `project-api:chat:${chatId}`

/** A page may forbid its storage, and a server has none. */
function ownStorage(): PlaceStorage | undefined {
  try {
    return globalThis.sessionStorage
  } catch {
    return undefined
  }
}
