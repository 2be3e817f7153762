import { afterEach } from 'node:test'
import type { Database } from '../../src/db/database.ts'
import type { PushVerdict } from '../../src/push/push-provider.ts'
import type { EngineUnderTest } from './engines.ts'
import { Post } from './post.ts'

/** One database for all outbox tests of an engine, empty for each test. */
export function setUpOutbox(engine: EngineUnderTest): OutboxSetup {
  let shared: Promise<Database> | undefined
  const posts: Post[] = []

  async function open(): Promise<Post> {
    shared ??= engine.openDatabase()
    const db = await shared
    for (const table of ['deliveries', 'notifications', 'devices']) {
      await db.transaction((tx) => tx.exec(`delete from ${table}`))
    }
    const post = new Post(db)
    posts.push(post)
    return post
  }

  afterEach(async () => {
    for (const post of posts.splice(0)) await post.close()
  })
  return { open, posts }
}

export interface OutboxSetup {
  /** Empties the shared database for one test. */
  open(): Promise<Post>
  /** Closed after each test; a test with a database of its own adds its post here. */
  posts: Post[]
}

export const MINUTE_MS = 60_000
export const HOUR_MS = 60 * MINUTE_MS

export const retry = (afterMs: number | null = null): PushVerdict => ({
  kind: 'retry',
  reason: '503 UNAVAILABLE',
  afterMs,
})
export const dead = (reason = 'unregistered'): PushVerdict => ({ kind: 'disable', reason, credentialsFault: null })
export const MISMATCH: PushVerdict = {
  kind: 'disable',
  reason: 'sender_mismatch',
  credentialsFault: 'devices are of another project',
}
export const HALT: PushVerdict = { kind: 'halt', reason: 'wrong project' }
