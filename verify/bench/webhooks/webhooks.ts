import { fork } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { migrate } from '../../../src/db/migrate.ts'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { startPostgres } from '../../../test/support/postgres.ts'
import { answerOf } from '../child-answers.ts'
import { median } from '../comparison.ts'
import { ENDPOINTS, type ReceiverAddresses, type WebhooksDone, type WebhookTask } from './webhook-task.ts'

type Way = WebhookTask['way']

/** The medians of the rounds. */
export interface WebhookFigures {
  messagesPerSecond: number
  /** Of the sending process, for one message. */
  cpuMicroseconds: number
}

const LATENCY_MS = 60
const WAYS: readonly Way[] = ['machine', 'raw']

/**
 * Compares webhooks per second to ten receivers that take 60 ms for each: from the log of events through the machine (fanned
 * out, leased, signed, sent, marked), and by the sender alone, over TLS with ten connections to each. They take turns, and
 * every event of every round must arrive once at each receiver.
 */
export async function compareWebhooks({ rounds, events }: { rounds: number; events: number }): Promise<{
  figures: ReadonlyMap<Way, WebhookFigures>
  vsRaw: number
}> {
  const start = (script: string, env: Record<string, string>) =>
    fork(fileURLToPath(new URL(script, import.meta.url)), {
      env: { PATH: process.env.PATH, NODE_ENV: 'production', ...env },
    })
  const postgres = await startPostgres()
  const receiver = start('./receiver-process.ts', { LATENCY_MS: String(LATENCY_MS) })
  const children = [receiver]
  try {
    const addresses = await answerOf<ReceiverAddresses>(receiver)
    const DATABASE_URL = await withSchema(await postgres.createDatabase())
    const sender = start('./sender-process.ts', { RECEIVERS: JSON.stringify(addresses), DATABASE_URL })
    children.push(sender)
    await answerOf(sender)
    const play = async (way: Way, round: string): Promise<WebhookFigures> => {
      const messages = events * ENDPOINTS
      sender.send({ way, events, round } satisfies WebhookTask)
      const { elapsedMs, cpuMs } = await answerOf<WebhooksDone>(sender)
      receiver.send('count')
      const { arrived, repeated } = await answerOf<{ arrived: number; repeated: number }>(receiver)
      if (arrived !== messages || repeated > 0) throw new Error(`${arrived} of ${messages} arrived, ${repeated} twice`)
      return { messagesPerSecond: (1_000 * messages) / elapsedMs, cpuMicroseconds: (1_000 * cpuMs) / messages }
    }
    for (const way of WAYS) await play(way, `warm ${way}`)
    const played: Record<Way, WebhookFigures[]> = { machine: [], raw: [] }
    for (let round = 0; round < rounds; round++) {
      for (const way of WAYS) played[way].push(await play(way, `${round} ${way}`))
    }
    const ratios = played.machine.map(
      (one, round) => one.messagesPerSecond / (played.raw[round]?.messagesPerSecond ?? Number.NaN),
    )
    return { figures: new Map(WAYS.map((way) => [way, middle(played[way])])), vsRaw: median(ratios) }
  } finally {
    for (const child of children) child.kill('SIGKILL')
    await postgres.stop()
  }
}

function middle(rounds: readonly WebhookFigures[]): WebhookFigures {
  return {
    messagesPerSecond: median(rounds.map((round) => round.messagesPerSecond)),
    cpuMicroseconds: median(rounds.map((round) => round.cpuMicroseconds)),
  }
}

async function withSchema(url: string): Promise<string> {
  const db = await openPostgres({ url })
  try {
    await migrate(db)
    return url
  } finally {
    await db.close()
  }
}
