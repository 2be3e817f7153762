import express from 'express'
import { ipKeyGenerator, rateLimit } from 'express-rate-limit'
import jwt from 'jsonwebtoken'
import jwksClient from 'jwks-rsa'
import pg from 'pg'

const { PORT, DATABASE_URL, ISSUER_URL, RUNTIME_URL, WEBHOOK_SECRET, RATE_LIMIT } = process.env

// Ten connections, the default, are few for 100 jobs in flight. The service has 18.
export const pool = new pg.Pool({ connectionString: DATABASE_URL, max: 20 })
pool.on('error', console.error)

const TABLES = `
  CREATE TABLE IF NOT EXISTS jobs (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    type text NOT NULL,
    status text NOT NULL DEFAULT 'processing',
    input jsonb NOT NULL,
    output jsonb,
    created_by text NOT NULL,
    thread_id text,
    run_id text,
    created_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
  );
  CREATE INDEX IF NOT EXISTS jobs_by_owner ON jobs (created_by, created_at DESC);
  CREATE TABLE IF NOT EXISTS usage (
    subject text NOT NULL,
    period text NOT NULL,
    runs integer NOT NULL,
    PRIMARY KEY (subject, period)
  );
  CREATE TABLE IF NOT EXISTS events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subject text NOT NULL,
    type text NOT NULL,
    data jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
  );
  CREATE INDEX IF NOT EXISTS events_by_subject ON events (subject, id);`

const jwks = jwksClient({ jwksUri: `${ISSUER_URL}/.well-known/jwks.json`, cache: true, rateLimit: true })

const fail = (res, status, code, message) => res.status(status).json({ error: { code, message } })

function getKey(header, callback) {
  jwks.getSigningKey(header.kid, (error, key) => callback(error, key?.getPublicKey()))
}

function authenticate(req, res, next) {
  const [scheme, token] = (req.headers.authorization ?? '').split(' ')
  if (scheme !== 'Bearer' || !token) return fail(res, 401, 'unauthorized', 'Missing bearer token')
  jwt.verify(token, getKey, { algorithms: ['RS256'], issuer: ISSUER_URL }, (error, claims) => {
    if (error) return fail(res, 401, 'unauthorized', 'Invalid or expired token')
    req.user = { sub: claims.sub }
    next()
  })
}

const limiter = (options) =>
  rateLimit({ windowMs: 60_000, limit: Number(RATE_LIMIT), standardHeaders: true, legacyHeaders: false, ...options })

const perUser = { keyGenerator: (req) => req.user?.sub ?? ipKeyGenerator(req.ip) }

async function callRuntime(path, body) {
  const response = await fetch(`${RUNTIME_URL}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(10_000),
  })
  if (!response.ok) throw new Error(`The runtime answered ${response.status}`)
  return response.json()
}

/** Runs the work in one transaction, on one connection. */
export async function inTransaction(work) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    const result = await work(client)
    await client.query('COMMIT')
    return result
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
}

/** `db` is the pool, or the connection of a transaction. */
export async function insertJob(db, { type, input, subject }) {
  const { rows } = await db.query(
    'INSERT INTO jobs (type, input, created_by) VALUES ($1, $2, $3) RETURNING id, type, status, created_at',
    [type, JSON.stringify(input), subject],
  )
  return rows[0]
}

/**
 * What the worker of either queue does with a job: starts its run, and stores the ids of thread and run. If the last
 * attempt fails, the job ends as failed.
 */
export async function startRun({ jobId, type, input }, { isLastAttempt, publish }) {
  try {
    const { thread_id } = await callRuntime('/threads', {})
    const { run_id } = await callRuntime(`/threads/${thread_id}/runs`, {
      assistant_id: type,
      input,
      metadata: { job_id: jobId },
      webhook: `http://127.0.0.1:${PORT}/webhooks/runs?token=${WEBHOOK_SECRET}`,
    })
    await pool.query('UPDATE jobs SET thread_id = $2, run_id = $3 WHERE id = $1', [jobId, thread_id, run_id])
  } catch (error) {
    if (isLastAttempt) await endJob({ jobId, status: 'failed', output: null }, publish)
    throw error
  }
}

async function endJob(end, publish) {
  const event = await settle(end)
  if (event) await publish(event)
}

/** Ends the job once, and counts it. Returns the event, or undefined if the job has already ended. */
function settle({ jobId, status, output }) {
  return inTransaction(async (client) => {
    const { rows } = await client.query(
      `UPDATE jobs SET status = $2, output = $3, finished_at = now()
       WHERE id = $1 AND status = 'processing' RETURNING id, type, created_by`,
      [jobId, status, JSON.stringify(output)],
    )
    const job = rows[0]
    if (job === undefined) return undefined
    const data = { job_id: job.id, type: job.type, status }
    const { rows: events } = await client.query(
      'INSERT INTO events (subject, type, data) VALUES ($1, $2, $3) RETURNING id',
      [job.created_by, `job.${status}`, data],
    )
    // Last, because the other jobs of the user wait for this row until the commit.
    await client.query(
      `INSERT INTO usage (subject, period, runs) VALUES ($1, to_char(now(), 'YYYY-MM'), 1)
       ON CONFLICT (subject, period) DO UPDATE SET runs = usage.runs + 1`,
      [job.created_by],
    )
    return { id: events[0].id, subject: job.created_by, type: `job.${status}`, data }
  })
}

const streams = new Map()

/** Writes an event to the open streams of its user on this node. */
export function deliver({ id, subject, type, data }) {
  for (const res of streams.get(subject) ?? []) {
    res.write(`id: ${id}\nevent: ${type}\ndata: ${JSON.stringify(data)}\n\n`)
  }
}

/**
 * Jobs on Express, as the READMEs of its packages show it: a row for each job, a queue whose worker starts the run, a
 * webhook that ends the job in one transaction, and a stream of events. `createJob` inserts the row and puts the job into
 * the queue; `publish` passes an event to all nodes, which call `deliver`.
 */
export async function serve({ createJob, publish }) {
  await pool.query(TABLES)
  const app = express()
  // The runtime's callbacks are JSON with another Content-Type.
  app.use(express.json({ limit: '10mb', type: () => true }))
  app.get('/healthz', (_req, res) => res.json({ status: 'ok' }))

  // Before the limiter: all callbacks come from one address.
  app.post('/webhooks/runs', async (req, res) => {
    if (req.query.token !== WEBHOOK_SECRET) return fail(res, 401, 'unauthorized', 'Wrong token')
    const { metadata, status, values } = req.body
    const end = { jobId: metadata.job_id, status: status === 'success' ? 'completed' : 'failed' }
    await endJob({ ...end, output: values?.report ?? null }, publish)
    res.json({ received: true })
  })

  app.use(limiter())

  app.post('/jobs', authenticate, limiter(perUser), async (req, res) => {
    const { type, input } = req.body ?? {}
    if (type !== 'report' || typeof input !== 'object' || input === null) {
      return fail(res, 400, 'invalid_request', 'Unknown job type, or no input')
    }
    res.status(202).json(await createJob({ type, input, subject: req.user.sub }))
  })

  app.get('/v1/events', authenticate, limiter(perUser), (req, res) => {
    const { sub } = req.user
    const open = streams.get(sub) ?? new Set()
    streams.set(sub, open.add(res))
    res.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' })
    res.write(': open\n\n')
    res.on('close', () => open.delete(res))
  })

  app.listen(Number(PORT), '127.0.0.1')
}
