import express from 'express'
import pg from 'pg'

/**
 * A callback endpoint as it is written with Express and pg: one transaction per request, for job, callback, usage record,
 * usage counter, event and timeline. Frozen since the goal was set: the usage record and the timeline entry are two small
 * rows more than the service of today writes.
 */
const { PORT, DATABASE_URL, WEBHOOK_SECRET } = process.env

const pool = new pg.Pool({ connectionString: DATABASE_URL })

const app = express()
app.use(express.json({ limit: '10mb', type: () => true }))
app.get('/healthz', (_req, res) => res.json({ status: 'ok' }))

app.post('/webhooks/jobs/report', async (req, res) => {
  if (req.headers['x-webhook-secret'] !== WEBHOOK_SECRET) return res.status(401).json({ error: 'unauthorized' })
  const { run_id, thread_id, status, values } = req.body
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    const outcome = await settle(client, { run_id, thread_id, status, values, body: JSON.stringify(req.body) })
    await client.query('COMMIT')
    res.json({ received: true, ...outcome })
  } catch (error) {
    await client.query('ROLLBACK')
    res.status(500).json({ error: String(error) })
  } finally {
    client.release()
  }
})

let counter = 0
const nextId = (prefix) => `${prefix}_${Date.now()}_${process.pid}_${counter++}`

async function settle(client, { run_id, thread_id, status, values, body }) {
  const now = Date.now()
  const { rows } = await client.query(
    `SELECT jobs.* FROM jobs JOIN job_runs ON job_runs.job_id = jobs.id WHERE job_runs.run_id = $1 FOR UPDATE OF jobs`,
    [run_id],
  )
  const job = rows[0]
  const open = job.status === 'processing' || job.status === 'generating'
  const outcome = open ? 'applied' : 'duplicate'
  if (open) {
    await client.query(
      `UPDATE jobs SET status = 'completed', output = $2, settled_by = 'callback',
         finished_at = $3, updated_at = $3 WHERE id = $1`,
      [job.id, JSON.stringify(values.report), now],
    )
    await client.query(
      `INSERT INTO usage_records (job_id, subject, period, type, input_tokens, output_tokens, total_tokens, settled_at)
       VALUES ($1, $2, $3, $4, 0, 0, 0, $5) ON CONFLICT DO NOTHING`,
      [job.id, job.created_by, new Date(now).toISOString().slice(0, 7), job.type, now],
    )
    await client.query(
      `INSERT INTO usage_counters (subject, period, type, runs, input_tokens, output_tokens, total_tokens)
       VALUES ($1, $2, $3, 1, 0, 0, 0)
       ON CONFLICT (subject, period, type) DO UPDATE SET runs = usage_counters.runs + 1`,
      [job.created_by, new Date(now).toISOString().slice(0, 7), job.type],
    )
    await client.query(
      `INSERT INTO events (subject, job_id, type, cause, data, created_at) VALUES ($1, $2, 'job.completed', $3, $4, $5)`,
      [job.created_by, job.id, `${job.id}:1:completed`, JSON.stringify({ job_id: job.id, status: 'completed' }), now],
    )
    await client.query(
      `INSERT INTO job_timeline (id, job_id, at, kind, via, detail, times, last_at)
       VALUES ($1, $2, $3, 'transition', 'callback', $4, 1, $3)`,
      [nextId('tml'), job.id, now, JSON.stringify({ from: job.status, to: 'completed' })],
    )
  }
  await client.query(
    `INSERT INTO callbacks (id, path, type, job_id, thread_id, run_id, status, outcome, received_at, body)
     VALUES ($1, '/webhooks/jobs/report', 'report', $2, $3, $4, $5, $6, $7, $8)`,
    [nextId('cbk'), job.id, thread_id, run_id, status, outcome, now, body],
  )
  return { outcome, job_id: job.id }
}

app.listen(Number(PORT), '127.0.0.1')
