import pg from 'pg'
import { PgBoss } from 'pg-boss'
import { deliver, insertJob, inTransaction, pool, serve, startRun } from './app.js'

/** Express with pg-boss: PostgreSQL keeps the queue, wakes the workers and passes events between nodes. */
const { DATABASE_URL } = process.env
const RETRIES = 5

const boss = new PgBoss({ connectionString: DATABASE_URL, useListenNotify: true })
boss.on('error', console.error)
await boss.start()
await boss.createQueue('runs', { retryLimit: RETRIES, retryDelay: 1, retryBackoff: true, notify: true })

const publish = (event) => pool.query("SELECT pg_notify('events', $1)", [JSON.stringify(event)])

// Two workers with 50 jobs each, because a worker fetches again only after its whole batch. Retries are not announced by
// a notification, so the workers also poll every two seconds.
const options = {
  localConcurrency: 2,
  batchSize: 50,
  burstWhenBatchFull: true,
  pollingIntervalSeconds: 0.5,
  notifyPollingIntervalSeconds: 2,
  perJobResults: true,
}
await boss.work('runs', options, (jobs) =>
  Promise.all(
    jobs.map(({ id, data, retryCount }) =>
      startRun(data, { isLastAttempt: retryCount >= RETRIES, publish }).then(
        () => ({ id, status: 'completed' }),
        (error) => ({ id, status: 'failed', output: { message: String(error) } }),
      ),
    ),
  ),
)

const listener = new pg.Client({ connectionString: DATABASE_URL })
listener.on('error', console.error)
await listener.connect()
await listener.query('LISTEN events')
listener.on('notification', ({ payload }) => deliver(JSON.parse(payload)))

await serve({
  // Row and queue entry commit together.
  createJob: (job) =>
    inTransaction(async (client) => {
      const row = await insertJob(client, job)
      const db = { executeSql: (text, values) => client.query(text, values) }
      await boss.send('runs', { jobId: row.id, type: job.type, input: job.input }, { db })
      return row
    }),
  publish,
})
