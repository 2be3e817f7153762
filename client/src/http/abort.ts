import { ApiError } from '../errors.ts'
import type { Clock } from './clock.ts'

/** A controller that also aborts with the given signal. React Native has no `AbortSignal.any` and no reasons of signals. */
export class LinkedAbort {
  readonly #controller = new AbortController()
  readonly #parent: AbortSignal | undefined
  readonly #follow = () => this.abort(reasonOf(this.#parent))
  #reason: unknown

  constructor(parent?: AbortSignal) {
    this.#parent = parent
    if (parent?.aborted) this.#follow()
    else parent?.addEventListener('abort', this.#follow, { once: true })
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get reason(): unknown {
    return this.#reason
  }

  /** The first reason counts. */
  abort(reason: unknown = reasonOf(undefined)): void {
    this.#reason ??= reason
    this.#controller.abort(this.#reason)
  }

  /** Stops listening to the parent signal, which may live much longer. */
  unlink(): void {
    this.#parent?.removeEventListener('abort', this.#follow)
  }

  /** Rejects as soon as the signal aborts: for work that does not listen to the signal itself. */
  async race<T>(work: T | Promise<T>): Promise<T> {
    const { signal } = this
    let stop = () => {}
    const aborted = new Promise<never>((_, reject) => {
      stop = () => reject(this.#reason)
      if (signal.aborted) stop()
      else signal.addEventListener('abort', stop, { once: true })
    })
    try {
      return await Promise.race([work, aborted])
    } finally {
      signal.removeEventListener('abort', stop)
    }
  }

  /** Aborts with `request_timeout` if the work takes too long. */
  async within<T>(
    { clock, ms, message }: { clock: Clock; ms: number; message: string },
    work: () => Promise<T>,
  ): Promise<T> {
    const done = new AbortController()
    void clock.sleep(ms, done.signal).then(() => {
      if (!done.signal.aborted) this.abort(new ApiError({ code: 'request_timeout', message }))
    })
    try {
      return await this.race(work())
    } finally {
      done.abort()
    }
  }
}

/** The error with which an aborted call rejects. */
export function reasonOf(signal: AbortSignal | undefined): unknown {
  return signal?.reason ?? Object.assign(new Error('The operation was aborted'), { name: 'AbortError' })
}
