import type { JobStatus } from '../../../src/jobs/job.ts'
import { EXPECTED } from '../expected-statuses.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'
import type { Prng } from '../time/prng.ts'
import type { Client } from './client.ts'
import type { JobView } from './job-scenario.ts'
import { inputOf, nameRequest } from './sent-documents.ts'

/** How a client watches its job: on its stream, on all its owner's events, by polling it, by polling the list, or not at all. */
const WAYS = { stream: 3, 'own events': 2, poll: 3, list: 3, nothing: 2 }
/** `poll and leave`: the client polls for some seconds only. Its job must end no later than an unread job. */
export type WatchWay = keyof typeof WAYS | 'poll and leave'

/** A job that a client started after the time of faults, and when the client saw that it had paused or ended. */
export interface WatchedJob {
  jobId: string
  way: WatchWay
  fromMs: number
  seenAtMs: number | null
}

/** After the faults, clients start more jobs and watch them until they pause or end. */
export function startCalmWorkload(system: SimulatedSystem): void {
  const { plan, prng, identity, time } = system
  for (let index = 0; index < plan.calm.jobs; index++) {
    const random = prng.split(`calm ${index}`)
    const { sub, token } = identity.user(random.int(0, plan.users - 1))
    const watches = random.weighted<WatchWay>(WAYS)
    const mayLeave = watches === 'poll' || watches === 'nothing'
    const way = mayLeave && random.split('leave').chance(0.5) ? 'poll and leave' : watches
    const type = random.weighted({ agent: 3, report: 3, review: 3 })
    const client = system.client(sub, token)
    time.after(
      random.int(0, 5_000),
      () => void watchNewJob(system, { client, random, way, type, marker: `calm-${index}` }),
    )
  }
  if (!plan.calm.hasLongRun) return
  const random = prng.split('long run')
  const { sub, token } = identity.user(0)
  const client = system.client(sub, token)
  void watchNewJob(system, { client, random, way: 'nothing', type: 'archive', marker: 'long' })
}

interface NewWatch {
  client: Client
  random: Prng
  way: WatchWay
  type: string
  marker: string
}

async function watchNewJob(system: SimulatedSystem, { client, random, way, type, marker }: NewWatch): Promise<void> {
  const { observed, time, violate } = system
  const input = inputOf(marker, { prng: random, observed })
  const answer = await client.requestUntilAnswered({
    method: 'POST',
    path: '/jobs',
    body: { text: `{"type":"${type}","input":${input},${nameRequest(observed, { by: client.name, marker })}}` },
    headers: { 'idempotency-key': `key-${marker}` },
  })
  if (answer?.status !== 202) return violate('answers', `POST /jobs answered ${answer?.status} without a fault`)
  const { id: jobId, thread_id } = JSON.parse(answer.body) as JobView
  observed.created.set(marker, new Set([jobId]))
  const watched: WatchedJob = { jobId, way, fromMs: time.now, seenAtMs: null }
  observed.watched.push(watched)
  const see = (status: JobStatus | undefined) => {
    if (status !== undefined && !EXPECTED[status].isActive) watched.seenAtMs ??= time.now
  }
  if (way === 'stream' || way === 'own events') {
    const ofJob = way === 'stream'
    const path = ofJob ? `/jobs/${jobId}/events` : '/v1/events'
    const onEvent = (text: string) => {
      if (text.includes(jobId)) see(/"status":"(\w+)"/.exec(text)?.[1] as JobStatus | undefined)
    }
    return system.follow({ client, path, subject: ofJob ? null : client.name, jobId: ofJob ? jobId : null, onEvent })
  }
  const leavesAtMs = way === 'poll and leave' ? time.now + random.int(2_000, 8_000) : Number.POSITIVE_INFINITY
  while (way !== 'nothing' && watched.seenAtMs === null && system.isCalm && time.now < leavesAtMs) {
    await time.sleep(random.int(300, 1_000))
    if (way === 'list') {
      observed.lists.set(client.name, (observed.lists.get(client.name) ?? 0) + 1)
      const listed = await client.request({ method: 'GET', path: random.pick(['/jobs', '/jobs?fields=summary']) })
      const page = listed?.status === 200 ? (JSON.parse(listed.body) as { data: JobView[] }).data : []
      see(page.find(({ id }) => id === jobId)?.status)
    } else {
      observed.requests.set(thread_id, (observed.requests.get(thread_id) ?? 0) + 1)
      const read = await client.request({ method: 'GET', path: `/jobs/${jobId}` })
      if (read?.status === 200) see((JSON.parse(read.body) as JobView).status)
    }
  }
}
