import { enableCompileCache } from 'node:module'
import { fileURLToPath } from 'node:url'

// As the service does, so that both starts find their code compiled.
enableCompileCache(fileURLToPath(new URL('../../../node_modules/.cache/bare-start', import.meta.url)))
const [{ default: fastify }, { default: pg }, { Redis }] = await Promise.all([
  import('fastify'),
  import('pg'),
  import('ioredis'),
])

/** A bare Fastify with one route and the drivers of the service, connected: the smallest service of this kind. */
const { PORT, DATABASE_URL, REDIS_URL } = process.env
const pool = new pg.Pool({ connectionString: DATABASE_URL })
const redis = new Redis(REDIS_URL ?? '')
await Promise.all([pool.query('select 1'), redis.ping()])
const app = fastify({ logger: true })
app.get(
  '/healthz',
  { schema: { response: { 200: { type: 'object', properties: { status: { type: 'string' } } } } } },
  () => ({
    status: 'ok',
  }),
)
await app.listen({ host: '127.0.0.1', port: Number(PORT) })
process.once('SIGINT', async () => {
  await app.close()
  await pool.end()
  redis.disconnect()
  // Node writes the compile cache when it ends by itself or by this.
  process.exit()
})
