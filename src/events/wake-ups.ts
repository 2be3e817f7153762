import type { Redis } from 'ioredis'
import { backoffMs } from '../core/async/backoff.ts'
import type { Clock } from '../core/clock.ts'
import type { Log } from '../core/log.ts'
import { type Random, uuidFrom } from '../core/random.ts'
import { TOPICS, type Topic } from '../db/announcements.ts'
import { openRedis, type RedisTarget } from '../limits/redis-target.ts'

const RECONNECT = { baseMs: 100, maxMs: 5_000 }
/** Commits in quick succession share one message. */
const GATHER_MS = 5

export function wakeUpChannel(prefix: string): string {
  return `${prefix}project-api:wake-ups`
}

export interface WakeUps {
  /** Wakes the other nodes. */
  signal(topic: Topic): void
  state(): { connected: boolean }
  close(): Promise<void>
}

/**
 * Wakes the other nodes over Redis after a commit. Correctness does not depend on it: while Redis is down, nodes find new
 * rows by polling, a little later.
 */
export function connectWakeUps(
  options: RedisTarget & { clock: Clock; random: Random; log: Log; onSignal: (topic: Topic) => void },
): WakeUps {
  const { prefix = '', clock, random, log, onSignal } = options
  const channel = wakeUpChannel(prefix)
  const self = uuidFrom(random)
  const sender = connect(options)
  const receiver = connect(options)
  const closing = new AbortController()
  const waiting = new Set<Topic>()

  let connections = 0
  let isListening = false

  /** Retries while the connection lasts: Redis may refuse the subscription at first, for example without permission. */
  const listen = async (connection: number): Promise<void> => {
    for (let failures = 0; connection === connections && !closing.signal.aborted; failures++) {
      try {
        await receiver.subscribe(channel)
        isListening = connection === connections
        return
      } catch (error) {
        if (failures === 0) log.warn({ err: error }, 'wake_ups.not_subscribed')
        await clock.sleep(backoffMs(RECONNECT, failures, random), closing.signal)
      }
    }
  }
  receiver.on('ready', () => void listen(connections))
  receiver.on('close', () => {
    connections += 1
    isListening = false
  })
  receiver.on('message', (_channel, message) => {
    const [name, sentBy] = message.split(' ')
    const topic = TOPICS.find((known) => known === name)
    // Its own commit has already woken this node.
    if (sentBy !== self && topic !== undefined) onSignal(topic)
  })

  const publish = async (topic: Topic): Promise<void> => {
    await clock.sleep(GATHER_MS, closing.signal)
    waiting.delete(topic)
    if (sender.status === 'ready') await sender.publish(channel, `${topic} ${self}`).catch(() => {})
  }

  return {
    signal: (topic) => {
      if (waiting.has(topic) || closing.signal.aborted) return
      waiting.add(topic)
      void publish(topic)
    },
    state: () => ({ connected: sender.status === 'ready' && isListening }),
    close: async () => {
      closing.abort()
      sender.disconnect()
      receiver.disconnect()
    },
  }
}

function connect({ url, random }: { url: string; random: Random }): Redis {
  let failures = 0
  const redis = openRedis(url, {
    enableOfflineQueue: false,
    autoResendUnfulfilledCommands: false,
    autoResubscribe: false,
    maxRetriesPerRequest: 0,
    connectTimeout: 1_000,
    commandTimeout: 1_000,
    retryStrategy: () => backoffMs(RECONNECT, failures++, random),
  })
  redis.on('ready', () => {
    failures = 0
  })
  // Not logged here: `/readyz` shows the state, and the limiter's connection logs the failure.
  redis.on('error', () => {})
  return redis
}
