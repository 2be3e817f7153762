import { Queue, Worker } from 'bullmq'
import { Redis } from 'ioredis'
import { deliver, insertJob, pool, serve, startRun } from './app.js'

/** Express with BullMQ: Redis keeps the queue and passes events between nodes. */
const { REDIS_URL } = process.env
const ATTEMPTS = 5

// As the guide advises: commands of a request fail soon, and a worker waits for Redis without limit.
const producer = new Redis(REDIS_URL)
const connection = new Redis(REDIS_URL, { maxRetriesPerRequest: null })
const subscriber = new Redis(REDIS_URL)
subscriber.on('error', console.error)

const queue = new Queue('runs', {
  connection: producer,
  defaultJobOptions: {
    attempts: ATTEMPTS,
    backoff: { type: 'exponential', delay: 1_000 },
    removeOnComplete: 1_000,
    removeOnFail: 5_000,
  },
})
queue.on('error', console.error)

const publish = (event) => producer.publish('events', JSON.stringify(event))

// The guide names 100 to 300 for jobs that wait for other servers. The service starts 100 runs at once.
const worker = new Worker(
  'runs',
  ({ data, attemptsMade }) => startRun(data, { isLastAttempt: attemptsMade + 1 >= ATTEMPTS, publish }),
  { connection, concurrency: 100 },
)
worker.on('error', console.error)

await subscriber.subscribe('events')
subscriber.on('message', (_channel, text) => deliver(JSON.parse(text)))

await serve({
  // Not atomic: if the process dies between the two, the row stays without a run.
  createJob: async (job) => {
    const row = await insertJob(pool, job)
    await queue.add('run', { jobId: row.id, type: job.type, input: job.input })
    return row
  },
  publish,
})
