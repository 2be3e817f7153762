import type { Clock } from '../core/clock.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Transaction } from '../db/database.ts'
import { appendEvents } from '../events/event-store.ts'
import { recordPushIntents } from '../push/intent-store.ts'
import type { PushOptOut } from '../push/push-opt-out.ts'
import type { ProjectChangeKind, ProjectNotifications } from './project-notifications.ts'
import type { ProjectRow } from './project-store.ts'

/**
 * Records each change of a project for its creator: an event, and a push where a text is configured. Both commit with the
 * change. Of a project whose creator was erased, only admins get the event.
 */
export class ProjectEvents {
  readonly #clock: Clock
  readonly #ids: IdGenerator
  readonly #notifications: ProjectNotifications
  readonly #pushOptOut: PushOptOut

  constructor(options: {
    clock: Clock
    ids: IdGenerator
    notifications: ProjectNotifications
    pushOptOut: PushOptOut
  }) {
    this.#clock = options.clock
    this.#ids = options.ids
    this.#notifications = options.notifications
    this.#pushOptOut = options.pushOptOut
  }

  async record(tx: Transaction, change: ProjectChangeKind, project: ProjectRow): Promise<void> {
    const atMs = this.#clock.now()
    const cause = `${project.id}:${project.version}:${change}`
    const subject = project.created_by
    const data = JSON.stringify({ project_id: project.id, name: project.name })
    await appendEvents(tx, [{ subject, job_id: null, type: `project.${change}`, cause, data, created_at: atMs }])
    const text = this.#notifications[change]
    if (!text || subject === null) return
    const id = this.#ids.next('ntf')
    const intent = {
      id,
      cause,
      job_id: null,
      subject,
      ...text,
      data,
      link: null,
      created_at: atMs,
      trace_context: null,
    }
    await recordPushIntents(tx, [intent], this.#pushOptOut)
  }
}
