import fastify from 'fastify'
import { openPostgres } from '../../../src/db/postgres/postgres.ts'
import { listById, readPageRequest, toPage } from '../../../src/http/paging.ts'
import { writesDocuments } from '../../../src/http/schemas.ts'
import { SERVER_LIMITS } from '../../../src/http/server/server-limits.ts'
import { getJob } from '../../../src/jobs/api/job-operations.ts'
import { toJob } from '../../../src/jobs/api/present-job.ts'
import { findJob } from '../../../src/jobs/job-store.ts'
import { toProject } from '../../../src/projects/project-routes.ts'
import { listProjects } from '../../../src/projects/project-schema.ts'
import * as store from '../../../src/projects/project-store.ts'

const { PORT, DATABASE_URL = '' } = process.env
const LIST = listById('projects')
const db = await openPostgres({ url: DATABASE_URL })

/**
 * The same reads and responses on a bare Fastify with the same server timeouts: no credentials, rate limits, request ids,
 * owners, query validation, logs or hooks.
 */
const app = fastify(SERVER_LIMITS)

app.get('/healthz', () => ({ status: 'ok' }))

const serializerCompiler = writesDocuments
const listing = { schema: { response: listProjects.response }, serializerCompiler }
app.get<{ Querystring: { cursor?: string } }>('/v1/projects', listing, async (request) => {
  const page = readPageRequest(LIST, request.query)
  const rows = await store.findProjectPage(db, page)
  return toPage(LIST, { rows, limit: page.limit, toItem: toProject, positionOf: (row) => [row.id] as const })
})

const reading = { schema: { response: getJob.response }, serializerCompiler }
app.get<{ Params: { id: string } }>('/jobs/:id', reading, async (request) => {
  const job = await findJob(db, request.params.id)
  if (!job) throw new Error('No such job')
  return toJob(job)
})

await app.listen({ host: '127.0.0.1', port: Number(PORT) })
