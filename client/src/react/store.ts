/** The initial state of a store, and the work that updates it. */
export interface StoreKind<State> {
  initial: State
  run: (store: Store<State>, signal: AbortSignal) => Promise<void>
}

/** State that several components show. It works while at least one of them is mounted. */
export class Store<State> {
  readonly #run: StoreKind<State>['run']
  readonly #onIdle: () => void
  readonly #listeners = new Set<() => void>()
  #running: AbortController | undefined
  #notifying: ReturnType<typeof setTimeout> | undefined
  #state: State

  constructor({ initial, run }: StoreKind<State>, onIdle: () => void = () => {}) {
    this.#state = initial
    this.#run = run
    this.#onIdle = onIdle
  }

  get(): State {
    return this.#state
  }

  /** The state changes at once. Many changes in one task, such as all parts of a network read, cause one render. */
  set(change: Partial<State>): void {
    this.#state = { ...this.#state, ...change }
    if (this.#listeners.size > 0) this.#notifying ??= setTimeout(() => this.#notify())
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener)
    if (!this.#running) {
      this.#running = new AbortController()
      void this.#run(this, this.#running.signal)
    }
    return () => {
      this.#listeners.delete(listener)
      // Strict mode unmounts and mounts again in the same tick. The store must not stop for that.
      queueMicrotask(() => this.#stopIfIdle())
    }
  }

  #notify(): void {
    this.#notifying = undefined
    for (const listener of [...this.#listeners]) listener()
  }

  #stopIfIdle(): void {
    if (this.#listeners.size > 0 || !this.#running) return
    clearTimeout(this.#notifying)
    this.#notifying = undefined
    this.#running.abort()
    this.#running = undefined
    this.#onIdle()
  }
}

const stores = new WeakMap<object, Map<string, unknown>>()

/**
 * One store for all components that show the same data of the same client. The first component that mounts creates it, and
 * the last one that unmounts removes it. A render alone stores nothing, because a server only renders.
 */
export function sharedStore<State>(client: object, key: string | null, kind: StoreKind<State>) {
  const find = () => stores.get(client)?.get(key ?? '') as Store<State> | undefined
  const subscribe = (listener: () => void): (() => void) => {
    if (key === null) return () => {}
    const own = stores.get(client) ?? new Map<string, unknown>()
    stores.set(client, own)
    const store = find() ?? new Store(kind, () => own.delete(key))
    own.set(key, store)
    return store.subscribe(listener)
  }
  return { subscribe, get: () => find()?.get() ?? kind.initial, initial: kind.initial }
}
