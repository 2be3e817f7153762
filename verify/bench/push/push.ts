import { type ChildProcess, fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { systemClock } from '../../../src/core/clock.ts'
import { isJsonObject, type Json } from '../../../src/core/json.ts'
import { migrate } from '../../../src/db/migrate.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { sql } from '../../../src/db/sql.ts'
import { createAssertionSigner } from '../../../src/push/fcm/fcm-assertion.ts'
import type { Arrival, PushStats } from '../../../src/sandbox/push-provider/log.ts'
import { startPostgres } from '../../../test/support/postgres.ts'
import { answerOf } from '../child-answers.ts'
import { median } from '../comparison.ts'
import { installPackages } from '../packages.ts'
import { type Done, deviceToken, type ProviderAddress, type Task } from './push-task.ts'

type Way = Task['way']

export interface PushPace {
  rounds: number
  /** Messages per round, each a multiple of 500. */
  messages: Readonly<Record<Way, number>>
}

/** The medians of the rounds. */
export interface PushFigures {
  messagesPerSecond: number
  /** Of the sending process, for one message. */
  cpuMicroseconds: number
}

export interface PushOutcome {
  figures: ReadonlyMap<Way, PushFigures>
  vsFirebaseAdmin: number
  outboxVsRaw: number
}

const LATENCY_MS = 60
const WAYS: readonly Way[] = ['outbox', 'raw', 'firebase-admin']

/**
 * Compares messages per second to a provider that takes 60 ms for each: through the outbox (committed, leased, sent,
 * marked), by the sender alone, and by firebase-admin's sendEach with 500 at a time. They take turns over TLS to one
 * provider, which must receive every message of every round once.
 */
export async function comparePush({ rounds, messages }: PushPace): Promise<PushOutcome> {
  installPackages('firebase-admin')
  const children: ChildProcess[] = []
  const start = (script: string, env: Record<string, string>) => {
    const child = fork(fileURLToPath(new URL(script, import.meta.url)), {
      env: { PATH: process.env.PATH, NODE_ENV: 'production', ...env },
    })
    children.push(child)
    return child
  }
  const postgres = await startPostgres()
  try {
    const DATABASE_URL = await withDevices(await postgres.createDatabase(), messages.outbox)
    const provider = await answerOf<ProviderAddress>(start('./provider-process.ts', { LATENCY_MS: String(LATENCY_MS) }))
    const PROVIDER = JSON.stringify(provider)
    const ours = start('./sender-process.ts', { PROVIDER, DATABASE_URL })
    const theirs = start('../firebase-admin/send.js', { PROVIDER, ACCESS_TOKEN: await newAccessToken(provider) })
    const play = async (way: Way, tag: string): Promise<PushFigures> => {
      const before = await statsOf(provider)
      const child = way === 'firebase-admin' ? theirs : ours
      child.send({ way, messages: messages[way], tag } satisfies Task)
      const { elapsedMs, cpuMs } = await answerOf<Done>(child)
      checkArrived({ before, after: await statsOf(provider), messages: messages[way] })
      return {
        messagesPerSecond: (1_000 * messages[way]) / elapsedMs,
        cpuMicroseconds: (1_000 * cpuMs) / messages[way],
      }
    }
    const shapes: string[] = []
    for (const way of WAYS) {
      await play(way, `ntf_warm_${way}`)
      shapes.push(await shapeOfLast(provider))
    }
    if (new Set(shapes).size > 1) throw new Error(`The messages differ:\n${shapes.join('\n')}`)

    const played: Record<Way, PushFigures[]> = { outbox: [], raw: [], 'firebase-admin': [] }
    for (let round = 0; round < rounds; round++) {
      for (const way of WAYS) played[way].push(await play(way, `ntf_${round}_${way}`))
    }
    return {
      figures: new Map(WAYS.map((way) => [way, middle(played[way])])),
      vsFirebaseAdmin: ratio(played.outbox, played['firebase-admin']),
      outboxVsRaw: ratio(played.outbox, played.raw),
    }
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await postgres.stop()
  }
}

function middle(rounds: readonly PushFigures[]): PushFigures {
  return {
    messagesPerSecond: median(rounds.map((round) => round.messagesPerSecond)),
    cpuMicroseconds: median(rounds.map((round) => round.cpuMicroseconds)),
  }
}

function ratio(ours: readonly PushFigures[], theirs: readonly PushFigures[]): number {
  return median(ours.map((one, round) => one.messagesPerSecond / (theirs[round]?.messagesPerSecond ?? Number.NaN)))
}

/** Stores one device per message of a round, all of one user. */
async function withDevices(url: string, devices: number): Promise<string> {
  const db = await openPostgres({ url })
  try {
    await migrate(db)
    const tokens = JSON.stringify(Array.from({ length: devices }, (_, n) => deviceToken(n)))
    await db.query(sql`
      insert into devices (id, subject, token, token_hash, platform, provider, created_at, last_seen_at)
      select 'dev_' || md5(token), ${`user-of-${devices}`}::text, token, md5(token), 'web', 'fcm', 1, 1
      from json_array_elements_text(${tokens}::json) as token`)
    await db.query(sql`analyze`)
    return url
  } finally {
    await db.close()
  }
}

async function newAccessToken({ plainUrl, credentials }: ProviderAddress): Promise<string> {
  const tokenUrl = `${plainUrl}/token`
  const assertion = createAssertionSigner(credentials, tokenUrl)?.(systemClock.now()) ?? ''
  const body = new URLSearchParams({ grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', assertion })
  const response = await fetch(tokenUrl, { method: 'POST', body, signal: AbortSignal.timeout(5_000) })
  const { access_token } = (await response.json()) as { access_token: string }
  return access_token
}

async function ask<T>({ plainUrl }: ProviderAddress, path: string): Promise<T> {
  const response = await fetch(`${plainUrl}/sandbox/${path}`, { signal: AbortSignal.timeout(5_000) })
  return (await response.json()) as T
}

function statsOf(provider: ProviderAddress): Promise<PushStats> {
  return ask<PushStats>(provider, 'stats')
}

/** Throws unless every device got its message exactly once. */
function checkArrived({ before, after, messages }: { before: PushStats; after: PushStats; messages: number }): void {
  const delivered = after.delivered - before.delivered
  if (delivered !== messages || after.sends - before.sends !== messages || after.repeated > 0) {
    throw new Error(`Of ${messages} messages ${delivered} arrived: ${JSON.stringify(after)}`)
  }
}

/** The field names of the newest message. All senders must send the same fields. */
async function shapeOfLast(provider: ProviderAddress): Promise<string> {
  const { data } = await ask<{ data: Arrival[] }>(provider, 'messages')
  return pathsOf(data[0]?.message ?? null)
    .sort()
    .join(' ')
}

function pathsOf(value: Json, path = ''): string[] {
  if (!isJsonObject(value)) return [path]
  return Object.entries(value).flatMap(([name, inner]) => pathsOf(inner ?? null, `${path}/${name}`))
}
