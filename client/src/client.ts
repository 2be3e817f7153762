import { Connection, type ConnectionOptions, type RequestOptions } from './http/connection.ts'
import type { ClientContext } from './jobs/job-requests.ts'
import { Jobs } from './jobs/jobs.ts'
import { conversationsOf, devicesOf, projectsOf, usageOf, usersOf } from './resources/resources.ts'
import type { FollowOptions } from './streams/follow-stream.ts'
import { followEvents, SharedEvents } from './streams/shared-events.ts'
import type { AnyJobTypes, ApiEvent, JobTypeMap } from './types.ts'

export type ClientOptions = ConnectionOptions

export interface EventsOptions extends Pick<FollowOptions, 'after' | 'signal' | 'onCursor'> {
  /** True: the events of every user. Needs `admin:*`. */
  all?: boolean
}

/** A client of one service for one caller. It opens no connection before it is used. */
export class ApiClient<Types = AnyJobTypes> {
  readonly jobs: Jobs<Types>
  readonly conversations: ReturnType<typeof conversationsOf<Types>>
  readonly projects: ReturnType<typeof projectsOf>
  readonly users: ReturnType<typeof usersOf>
  readonly devices: ReturnType<typeof devicesOf>
  readonly usage: ReturnType<typeof usageOf>
  /** @internal For the hooks and transports of this package. */
  readonly context: ClientContext

  constructor(options: ClientOptions) {
    const connection = new Connection(options)
    this.context = { connection, events: new SharedEvents(connection) }
    this.jobs = new Jobs(this.context)
    this.conversations = conversationsOf<Types>(connection)
    this.projects = projectsOf(connection)
    this.users = usersOf(connection)
    this.devices = devicesOf(connection)
    this.usage = usageOf(connection)
  }

  /**
   * The caller's events as they happen, until the signal aborts. The stream resumes after each break. All loops of a client
   * share one connection, except those with `after`, `onCursor` or `all`.
   */
  events(options: EventsOptions = {}): AsyncGenerator<ApiEvent<Types>> {
    const { connection, events } = this.context
    const { after, all, onCursor, signal } = options
    const isOwn = (after ?? null) !== null || all === true || onCursor !== undefined
    const found = isOwn ? followEvents(connection, { after, signal, onCursor, query: { all } }) : events.iterate(signal)
    return found as AsyncGenerator<ApiEvent<Types>>
  }

  /** Any other request of the service, with the same credentials, retries and errors. */
  async request<Body = unknown>(method: string, path: string, options: RequestOptions = {}): Promise<Body> {
    return (await this.context.connection.send<Body>(method, path, options)).body
  }
}

/** Creates a client. Pass the job types of your deployment, as `project-api types` prints them, to get typed jobs. */
export function createClient<Types extends JobTypeMap<Types> = AnyJobTypes>(options: ClientOptions): ApiClient<Types> {
  return new ApiClient<Types>(options)
}
