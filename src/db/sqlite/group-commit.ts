import { AsyncResource } from 'node:async_hooks'
import { UnavailableError } from '../../core/errors.ts'

interface GroupCommitOptions {
  /** Called before the first member of a group. */
  prepare: () => Promise<void>
  /** Commits the changes of all members of a group. */
  commit: () => Promise<void>
  maxGroup: number
  /** How many callers may wait before more are refused. */
  maxWaiting: number
}

interface Member {
  work: () => Promise<unknown>
  /** The work runs in the async context of its own caller, so in its trace, not in that of the group's first caller. */
  caller: AsyncResource
  /** The work cannot share a commit. */
  alone: boolean
  resolve: (result: unknown) => void
  reject: (error: unknown) => void
}

/** The event loop gets a turn after this many members, because each member blocks it while its statements run. */
const MEMBERS_IN_ONE_TURN = 8

/**
 * Runs one piece of work at a time, in order of arrival, and commits in groups: all work that arrives during one commit
 * shares the next commit and its wait for the disk. Results and errors are returned only after the commit, because they may
 * depend on changes of earlier members of the group.
 */
export class GroupCommit {
  readonly #options: GroupCommitOptions
  readonly #waiting: Member[] = []
  #running = false
  #closing: Promise<void> | undefined
  #onIdle: (() => void) | undefined

  constructor(options: GroupCommitOptions) {
    this.#options = options
  }

  run<T>(work: () => Promise<T>, { alone = false } = {}): Promise<T> {
    const refusal = this.#refusal()
    if (refusal) return Promise.reject(refusal)
    return new Promise<unknown>((resolve, reject) => {
      this.#waiting.push({ work, caller: new AsyncResource('GroupCommit'), alone, resolve, reject })
      if (!this.#running) void this.#runGroups()
    }) as Promise<T>
  }

  /** Refuses all waiting work; resolves when the current group has ended. */
  close(): Promise<void> {
    this.#closing ??= new Promise((resolve) => {
      for (const { reject } of this.#waiting.splice(0)) reject(closed())
      if (!this.#running) return resolve()
      this.#onIdle = resolve
    })
    return this.#closing
  }

  #refusal(): UnavailableError | undefined {
    const { maxWaiting } = this.#options
    if (this.#closing) return closed()
    if (this.#waiting.length < maxWaiting) return undefined
    const cause = new Error(`${maxWaiting} callers already wait for the database`)
    return new UnavailableError('The database is overloaded', { cause })
  }

  async #runGroups(): Promise<void> {
    this.#running = true
    while (this.#waiting.length > 0) {
      const group = this.#takeGroup()
      await this.#runGroup(group)
      // Groups that do not wait for the disk would run as microtasks and block all sockets.
      if (this.#waiting.length > 0) await nextTurn()
    }
    this.#running = false
    this.#onIdle?.()
  }

  #takeGroup(): Member[] {
    const last = this.#waiting[0]?.alone ? 1 : this.#waiting.findIndex(({ alone }) => alone)
    return this.#waiting.splice(0, Math.min(last < 0 ? this.#waiting.length : last, this.#options.maxGroup))
  }

  async #runGroup(members: readonly Member[]): Promise<void> {
    const endings: (() => void)[] = []
    try {
      await this.#options.prepare()
      for (const [index, member] of members.entries()) {
        if (index > 0 && index % MEMBERS_IN_ONE_TURN === 0) await nextTurn()
        endings.push(await endingOf(member))
      }
      await this.#options.commit()
    } catch (error) {
      for (const { reject } of members) reject(error)
      return
    }
    for (const end of endings) end()
  }
}

async function endingOf({ work, caller, resolve, reject }: Member): Promise<() => void> {
  try {
    const result = await caller.runInAsyncScope(work)
    return () => resolve(result)
  } catch (error) {
    return () => reject(error)
  }
}

function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve))
}

function closed(): UnavailableError {
  return new UnavailableError('The database is unavailable', { cause: new Error('The database is closed') })
}
