import { type Answer, type Connection, type Failure, idempotency } from '../http/connection.ts'
import type {
  Conversation,
  ConversationItem,
  Device,
  DeviceInput,
  Project,
  ProjectChange,
  ProjectInput,
  Turn,
  Usage,
  UsageLimits,
  User,
  UserChange,
} from '../types.ts'
import { type CallOptions, type ListOptions, listOf } from './pages.ts'

export interface ChangeOptions extends CallOptions {
  /** The `etag` of the version that the change is based on. If the record has changed since: `precondition_failed`. */
  ifMatch?: string
}

export interface CreateOptions extends CallOptions {
  /** Calls with the same key create one record. 1 to 255 visible ASCII characters. Default: a new key for each call. */
  idempotencyKey?: string
}

/** A record and its version, for `ifMatch`. Reading `etag` throws if a proxy removed the header `ETag` of the answer. */
export type Versioned<Record> = Record & { readonly etag: string }

/** The requests that the service's records have in common. */
class Records<Record extends object, Input extends object, Change extends object> {
  readonly #connection: Connection
  readonly #path: string

  constructor(connection: Connection, path: string) {
    this.#connection = connection
    this.#path = path
  }

  readonly list = (options: ListOptions = {}) => listOf<Record>(this.#connection, this.#path, options)

  readonly get = async (id: string, options?: CallOptions) =>
    withVersion(await this.#connection.send<Record>('GET', this.#at(id), options))

  readonly create = async (body: Input, { idempotencyKey, signal }: CreateOptions = {}) => {
    const headers = idempotency(idempotencyKey)
    return withVersion(await this.#connection.send<Record>('POST', this.#path, { body, headers, signal }))
  }

  readonly update = async (id: string, change: Change, { ifMatch, signal }: ChangeOptions = {}) => {
    const recover = async ({ error, attempt }: Failure) => {
      if (attempt === 0 || codeOf(error) !== 'precondition_failed') return undefined
      // The first attempt, whose answer was lost, may have changed the version.
      const found = await this.#connection.send<Record>('GET', this.#at(id), { signal })
      return isSubset(change, found.body) ? found : undefined
    }
    const options = { body: change, headers: matching(ifMatch), signal, recover }
    return withVersion(await this.#connection.send<Record>('PATCH', this.#at(id), options))
  }

  readonly delete = (id: string, options?: ChangeOptions) => remove(this.#connection, this.#at(id), options)

  #at(id: string): string {
    return `${this.#path}/${encodeURIComponent(id)}`
  }
}

/** The caller's conversations, by the `thread_id` of their jobs. */
export function conversationsOf<Types>(connection: Connection) {
  const at = (threadId: string) => `/v1/conversations/${encodeURIComponent(threadId)}`
  const turns = (threadId: string, options: ListOptions = {}) => listOf<Turn<Types>>(connection, at(threadId), options)
  return {
    /** The conversation with the newest turn first. */
    list: (options: ListOptions = {}) => listOf<ConversationItem>(connection, '/v1/conversations', options),
    /** A conversation with its newest turns, or with those after `cursor`. */
    get: (threadId: string, { cursor, ...options }: ListOptions & { cursor?: string | null } = {}) =>
      turns(threadId, options).page(cursor) as Promise<Conversation<Types>>,
    /** All turns of a conversation, newest first. */
    turns,
    /** Deletes all jobs of a conversation, and its thread at the runtime. `conflict` while one of them is unfinished. */
    delete: (threadId: string, options?: CallOptions) => remove(connection, at(threadId), options),
  }
}

/** `read:projects` and `write:projects`. */
export function projectsOf(connection: Connection) {
  return new Records<Project, ProjectInput, ProjectChange>(connection, '/v1/projects')
}

/** `me` needs no scope, the others `read:users` and `write:users`. */
export function usersOf(connection: Connection) {
  const { list, get, update } = new Records<User, never, UserChange>(connection, '/v1/users')
  return {
    list,
    get,
    update,
    me: (options?: CallOptions) => get('me', options),
    updateMe: (change: UserChange, options?: ChangeOptions) => update('me', change, options),
  }
}

/** The devices that get the caller's push notifications. They have no versions. */
export function devicesOf(connection: Connection) {
  const { list, get, create, delete: remove } = new Records<Device, DeviceInput, never>(connection, '/v1/devices')
  return {
    list,
    get: (id: string, options?: CallOptions): Promise<Device> => get(id, options),
    /** Call it on each start of the app, after sign-in and when the token changes. Repeated calls are safe. */
    register: (device: DeviceInput, options?: CreateOptions): Promise<Device> => create(device, options),
    /** Call it on sign-out: otherwise the next user of the device sees this user's pushes. */
    remove,
  }
}

/** The usage of the caller, or of a user, in a calendar month. */
export function usageOf(connection: Connection) {
  const read = async (path: string, { signal, period }: CallOptions & { period?: string } = {}) =>
    (await connection.send<Usage>('GET', path, { query: { period }, signal })).body
  return {
    get: (options?: CallOptions & { period?: string }) => read('/v1/usage', options),
    of: (sub: string, options?: CallOptions & { period?: string }) =>
      read(`/v1/users/${encodeURIComponent(sub)}/usage`, options),
    /** Replaces both limits per month of a user; null: the service's default. Needs `admin:*`. */
    setLimits: async (sub: string, limits: UsageLimits, { signal }: CallOptions = {}) => {
      const path = `/v1/users/${encodeURIComponent(sub)}/limits`
      return (await connection.send<UsageLimits>('PUT', path, { body: limits, signal })).body
    },
  }
}

/** Deletes a record. A 404 after a retry counts as success: the first attempt deleted it, and its answer was lost. */
export async function remove(connection: Connection, path: string, { ifMatch, signal }: ChangeOptions = {}) {
  await connection.send<null>('DELETE', path, {
    headers: matching(ifMatch),
    signal,
    recover: async ({ error, attempt }) => (attempt > 0 && codeOf(error) === 'not_found' ? { body: null } : undefined),
  })
}

const matching = (ifMatch: string | undefined) => (ifMatch === undefined ? {} : { 'if-match': ifMatch })
const codeOf = (error: unknown) => (error as { code?: unknown } | undefined)?.code

/** Whether every field of the change has its value in the record. */
function isSubset(change: object, record: object): boolean {
  const known = new Map(Object.entries(record))
  return Object.entries(change).every(
    ([name, value]) => value === undefined || JSON.stringify(known.get(name)) === JSON.stringify(value),
  )
}

/** Adds the version as a hidden property, so that it does not appear when the record is shown or sent back. */
function withVersion<Record extends object>({ body, headers }: Answer<Record>): Versioned<Record> {
  const get = () => {
    const etag = headers?.get('etag')
    // Without an error here, a change would be sent without its condition.
    if (!etag) throw new Error('The answer has no ETag: a proxy in front of the service has removed it')
    return etag
  }
  return Object.defineProperty(body, 'etag', { get }) as Versioned<Record>
}
