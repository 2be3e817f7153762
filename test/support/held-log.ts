import { openWriteAheadLog, type WriteAheadLog } from '../../src/db/sqlite/write-ahead-log.ts'

/** One complete, committed group that waits for the disk. */
export interface HeldSync {
  release(): void
  fail(): void
}

/** The real log, with every sync held until the test releases it or makes it fail. */
export class HeldLog {
  readonly #syncs: PromiseWithResolvers<HeldSync>[] = []
  #arrived = 0
  #taken = 0

  readonly open = (path: string): WriteAheadLog => {
    const log = openWriteAheadLog(path)
    return {
      ...log,
      sync: async () => {
        if ((await this.#hold()) === 'fail') throw new Error('EIO: i/o error, fdatasync')
        await log.sync()
      },
    }
  }

  nextSync(): Promise<HeldSync> {
    return this.#at(this.#taken++).promise
  }

  #hold(): Promise<keyof HeldSync> {
    const decision = Promise.withResolvers<keyof HeldSync>()
    this.#at(this.#arrived++).resolve({
      release: () => decision.resolve('release'),
      fail: () => decision.resolve('fail'),
    })
    return decision.promise
  }

  #at(index: number): PromiseWithResolvers<HeldSync> {
    this.#syncs[index] ??= Promise.withResolvers()
    return this.#syncs[index]
  }
}
