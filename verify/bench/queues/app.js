import express from 'express'
import { ipKeyGenerator, rateLimit } from 'express-rate-limit'
import jwt from 'jsonwebtoken'
import jwksClient from 'jwks-rsa'
import pg from 'pg'

const { PORT, DATABASE_URL, ISSUER_URL, RUNTIME_URL, WEBHOOK_SECRET, RATE_LIMIT } = process.env

export const pool = new pg.Pool({ connectionString: DATABASE_URL })

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

/** What the worker of either queue does with a job: starts its run, and stores the ids of thread and run. */
export async function startRun({ jobId, type, input }) {
  const { thread_id } = await callRuntime('/threads', {})
  const { run_id } = await callRuntime(`/threads/${thread_id}/runs`, {
    assistant_id: type,
    input,
    metadata: { job_id: jobId },
    webhook: `http://127.0.0.1:${PORT}/webhooks/runs?token=${WEBHOOK_SECRET}`,
  })
  await pool.query('UPDATE jobs SET thread_id = $2, run_id = $3 WHERE id = $1', [jobId, thread_id, run_id])
}

/** Ends the job once, and counts it. Returns the event, or undefined for a repeated callback. */
async function settle({ metadata, status, values }) {
  const client = await pool.connect()
  try {
    await client.query('BEGIN')
    const ended = status === 'success' ? 'completed' : 'failed'
    const { rows } = await client.query(
      `UPDATE jobs SET status = $2, output = $3, finished_at = now()
       WHERE id = $1 AND status = 'processing' RETURNING id, type, created_by`,
      [metadata.job_id, ended, JSON.stringify(values?.report ?? null)],
    )
    const job = rows[0]
    if (job === undefined) {
      await client.query('ROLLBACK')
      return undefined
    }
    await client.query(
      `INSERT INTO usage (subject, period, runs) VALUES ($1, to_char(now(), 'YYYY-MM'), 1)
       ON CONFLICT (subject, period) DO UPDATE SET runs = usage.runs + 1`,
      [job.created_by],
    )
    const data = { job_id: job.id, type: job.type, status: ended }
    const { rows: events } = await client.query(
      'INSERT INTO events (subject, type, data) VALUES ($1, $2, $3) RETURNING id',
      [job.created_by, `job.${ended}`, data],
    )
    await client.query('COMMIT')
    return { id: events[0].id, subject: job.created_by, type: `job.${ended}`, data }
  } catch (error) {
    await client.query('ROLLBACK')
    throw error
  } finally {
    client.release()
  }
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
 * webhook that ends the job in one transaction, and a stream of events. `enqueue` puts a job into the queue; `publish`
 * passes an event to all nodes, which call `deliver`.
 */
export async function serve({ enqueue, publish }) {
  await pool.query(TABLES)
  const app = express()
  app.use(limiter())
  // The runtime's callbacks are JSON with another Content-Type.
  app.use(express.json({ limit: '10mb', type: () => true }))
  app.get('/healthz', (_req, res) => res.json({ status: 'ok' }))

  app.post('/jobs', authenticate, limiter(perUser), async (req, res) => {
    const { type, input } = req.body
    if (type !== 'report' || typeof input !== 'object') return fail(res, 400, 'invalid_request', 'Unknown job type')
    const { rows } = await pool.query(
      'INSERT INTO jobs (type, input, created_by) VALUES ($1, $2, $3) RETURNING id, status, created_at',
      [type, input, req.user.sub],
    )
    await enqueue({ jobId: rows[0].id, type, input })
    res.status(202).json({ ...rows[0], type })
  })

  app.post('/webhooks/runs', async (req, res) => {
    if (req.query.token !== WEBHOOK_SECRET) return fail(res, 401, 'unauthorized', 'Wrong token')
    const event = await settle(req.body)
    if (event) await publish(event)
    res.json({ received: true })
  })

  app.get('/v1/events', authenticate, limiter(perUser), (req, res) => {
    const { sub } = req.user
    const open = streams.get(sub) ?? new Set()
    streams.set(sub, open.add(res))
    res.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-cache' })
    res.write(': open\n\n')
    req.on('close', () => open.delete(res))
  })

  app.listen(Number(PORT), '127.0.0.1')
}
