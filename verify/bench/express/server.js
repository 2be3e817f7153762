import express from 'express'
import { ipKeyGenerator, rateLimit } from 'express-rate-limit'
import jwt from 'jsonwebtoken'
import jwksClient from 'jwks-rsa'
import pg from 'pg'

/**
 * Implementation B as its users write it, from the README of each package and with the defaults of each package.
 * Nothing is held back: production mode, cached signing keys, a pool of ten, no request log.
 */
const { PORT, DATABASE_URL, ISSUER_URL, RATE_LIMIT } = process.env

const pool = new pg.Pool({ connectionString: DATABASE_URL })

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
    req.user = { sub: claims.sub, email: claims.email, scopes: (claims['custom:scopes'] ?? '').split(' ') }
    next()
  })
}

const requireScope =
  (...required) =>
  (req, res, next) => {
    const { scopes } = req.user
    if (scopes.includes('admin:*') || required.some((scope) => scopes.includes(scope))) return next()
    fail(res, 403, 'forbidden', 'Insufficient scope')
  }

const limiter = (options) =>
  rateLimit({
    windowMs: 60_000,
    // 100 and 1,000 by default; out of reach here, so that every request is served.
    limit: Number(RATE_LIMIT),
    standardHeaders: true,
    legacyHeaders: false,
    handler: (_req, res) => fail(res, 429, 'rate_limit_exceeded', 'Too many requests'),
    ...options,
  })

const toProject = (row) => ({
  id: row.id,
  name: row.name,
  description: row.description,
  metadata: JSON.parse(row.metadata),
  created_by: row.created_by,
  created_at: new Date(Number(row.created_at)).toISOString(),
  updated_at: new Date(Number(row.updated_at)).toISOString(),
})

const app = express()
app.use(limiter())
app.use(express.json())
app.get('/healthz', (_req, res) => res.json({ status: 'ok' }))
app.use('/v1', authenticate)
app.use('/v1', limiter({ keyGenerator: (req) => req.user?.sub ?? (req.ip ? ipKeyGenerator(req.ip) : 'anonymous') }))

app.get('/v1/projects', requireScope('read:projects'), async (req, res) => {
  const limit = Math.min(Number(req.query.limit ?? 20), 100)
  const { rows } = await pool.query(
    `SELECT id, name, description, metadata, created_by, version, created_at, updated_at
     FROM projects ORDER BY id DESC LIMIT $1`,
    [limit + 1],
  )
  const data = rows.slice(0, limit).map(toProject)
  const hasMore = rows.length > limit
  res.json({ data, has_more: hasMore, next_cursor: hasMore ? data.at(-1).id : null })
})

app.listen(Number(PORT), '127.0.0.1')
