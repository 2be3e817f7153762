import type { BlockedUsers } from '../auth/blocked-users.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { type Meter, silentMeter } from '../core/metrics/meter.ts'
import type { Random } from '../core/random.ts'
import type { Topic, TopicListener } from '../db/announcements.ts'
import type { Database } from '../db/database.ts'
import { OpenStreams } from '../http/streams/open-streams.ts'
import type { RedisTarget } from '../limits/redis-target.ts'
import { EventFeed } from './event-feed.ts'
import { EventStreams } from './event-streams.ts'

/**
 * Wires the event streams. Commits of this process wake them, and so do commits of other nodes, over Redis. `onTopic` is
 * called for both, so that other parts need no Redis connection of their own.
 */
export async function createEventServices(options: {
  db: Database
  clock: Clock
  random: Random
  log: Log
  meter?: Meter
  redis: RedisTarget | null
  onTopic: TopicListener
  blockedUsers: BlockedUsers
}) {
  const { db, clock, random, log, meter = silentMeter, redis, onTopic, blockedUsers } = options
  const feed = new EventFeed({ db, clock, log, meter })
  const openStreams = new OpenStreams({ clock, random, log, blockedUsers })
  const streams = new EventStreams({ db, clock, meter, feed, openStreams })
  const wake = (topic: Topic): void => {
    if (topic === 'events') feed.wake()
    onTopic(topic)
  }
  const wakeUps =
    redis === null
      ? null
      : (await import('./wake-ups.ts')).connectWakeUps({ ...redis, clock, random, log, onSignal: wake })
  const unlisten = db.listen((topic) => {
    wake(topic)
    wakeUps?.signal(topic)
  })
  return {
    feed,
    streams,
    openStreams,
    wakeUps,
    close: async () => {
      unlisten()
      await openStreams.close()
      await feed.close()
      await wakeUps?.close()
    },
  }
}
