import { Queue, Worker } from 'bullmq'
import { Redis } from 'ioredis'
import { deliver, serve, startRun } from './app.js'

/** Express with BullMQ: Redis keeps the queue and passes events between nodes. */
const { REDIS_URL } = process.env
const connection = new Redis(REDIS_URL, { maxRetriesPerRequest: null })
const subscriber = new Redis(REDIS_URL)

const queue = new Queue('runs', { connection })
const options = { attempts: 5, backoff: { type: 'exponential', delay: 1_000 }, removeOnComplete: 1_000 }
new Worker('runs', (job) => startRun(job.data), { connection, concurrency: 50 })

await subscriber.subscribe('events')
subscriber.on('message', (_channel, text) => deliver(JSON.parse(text)))

await serve({
  enqueue: (job) => queue.add('run', job, options),
  publish: (event) => connection.publish('events', JSON.stringify(event)),
})
