import type { Clock } from '../core/clock.ts'
import type { IdGenerator } from '../core/ids.ts'
import type { Transaction } from '../db/database.ts'
import { appendEvents } from '../events/event-store.ts'
import { recordPushIntents } from '../push/intent-store.ts'
import type { ProjectRow } from './project-store.ts'

export type ProjectDeed = 'created' | 'updated' | 'deleted'

/** What a project's creator is told on the phone, per deed; what is not listed is only streamed. */
export type ProjectNotifications = Partial<Record<ProjectDeed, { title: string; body: string }>>

/** Tells the stream of the project's creator, and the creator's devices where that is asked for, with the deed itself. */
export class ProjectNews {
  readonly #clock: Clock
  readonly #ids: IdGenerator
  readonly #notifications: ProjectNotifications

  constructor(options: { clock: Clock; ids: IdGenerator; notifications: ProjectNotifications }) {
    this.#clock = options.clock
    this.#ids = options.ids
    this.#notifications = options.notifications
  }

  async tell(tx: Transaction, deed: ProjectDeed, project: ProjectRow): Promise<void> {
    const atMs = this.#clock.now()
    const cause = `${project.id}:${project.version}:${deed}`
    const subject = project.created_by
    const data = JSON.stringify({ project_id: project.id, name: project.name })
    await appendEvents(tx, [{ subject, job_id: null, type: `project.${deed}`, cause, data, created_at: atMs }])
    const text = this.#notifications[deed]
    if (!text) return
    const id = this.#ids.next('ntf')
    await recordPushIntents(tx, [{ id, cause, job_id: null, subject, ...text, data, created_at: atMs }])
  }
}
