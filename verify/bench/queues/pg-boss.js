import pg from 'pg'
import { PgBoss } from 'pg-boss'
import { deliver, pool, serve, startRun } from './app.js'

/** Express with pg-boss: PostgreSQL keeps the queue, wakes the workers and passes events between nodes. */
const { DATABASE_URL } = process.env
const boss = new PgBoss({ connectionString: DATABASE_URL, useListenNotify: true })
boss.on('error', (error) => console.error(error))
await boss.start()
await boss.createQueue('runs', { retryLimit: 5, retryDelay: 1, retryBackoff: true, notify: true })
const options = { batchSize: 50, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5, perJobResults: true }
await boss.work('runs', options, (jobs) =>
  Promise.all(
    jobs.map(({ id, data }) =>
      startRun(data).then(
        () => ({ id, status: 'completed' }),
        (error) => ({ id, status: 'failed', output: { message: String(error) } }),
      ),
    ),
  ),
)

const listener = new pg.Client({ connectionString: DATABASE_URL })
await listener.connect()
await listener.query('LISTEN events')
listener.on('notification', ({ payload }) => deliver(JSON.parse(payload)))

await serve({
  enqueue: (job) => boss.send('runs', job),
  publish: (event) => pool.query("SELECT pg_notify('events', $1)", [JSON.stringify(event)]),
})
