import { systemClock } from '../../src/core/clock.ts'
import { IdGenerator } from '../../src/core/ids.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { systemRandom } from '../../src/core/random.ts'
import { buildNextIndex } from '../../src/db/build-indexes.ts'
import { migrate } from '../../src/db/migrate.ts'
import { openPostgres } from '../../src/db/postgres/postgres.ts'
import { type JobRow, newJob } from '../../src/jobs/job-row.ts'
import { insertJob } from '../../src/jobs/job-store.ts'
import { type JobType, toJobTypes } from '../../src/jobs/job-types.ts'
import { insertProject } from '../../src/projects/project-store.ts'
import { startIdentityProvider } from '../../src/sandbox/identity-provider/identity-provider.ts'
import { startPostgres } from '../../test/support/postgres.ts'

export interface BenchEnvironment {
  databaseUrl: string
  issuerUrl: string
  /** The same page by many users, each with their own token. */
  sharedPageRequests: readonly Buffer[]
  /** Each user reads a page that no other user reads. */
  distinctPageRequests: readonly Buffer[]
  /** Each user reads a finished job of their own. */
  jobRequests: readonly Buffer[]
  close(): Promise<void>
}

const USERS = 500
const PAGE = 20
/** One more page than the users begin at, so that every page is full. */
const PROJECTS = USERS + PAGE
const REPORT = toJobTypes({ report: { assistant_id: 'report', output_key: 'report' } }).get('report') as JobType

/** Shared by all servers of a run: one PostgreSQL with projects and jobs, and one issuer of real tokens. */
export async function startBenchEnvironment(): Promise<BenchEnvironment> {
  const postgres = await startPostgres()
  const issuer = await startIdentityProvider()
  const databaseUrl = await postgres.createDatabase()
  const { projectIds, jobIds } = await seed(databaseUrl)
  const tokens = Array.from({ length: USERS }, (_, n) =>
    issuer.mint({ sub: subjectOf(n), email: `user-${n}@example.com`, scopes: ['read:projects'] }),
  )
  return {
    databaseUrl,
    issuerUrl: issuer.issuer,
    sharedPageRequests: tokens.map((token) => getRequest('/v1/projects', token)),
    distinctPageRequests: tokens.map((token, n) => getRequest(`/v1/projects?cursor=${cursorAt(projectIds[n])}`, token)),
    jobRequests: tokens.map((token, n) => getRequest(`/jobs/${jobIds[n]}`, token)),
    close: async () => {
      await issuer.close()
      await postgres.stop()
    },
  }
}

/** The page of older projects than this one. */
function cursorAt(projectId: string | undefined): string {
  return Buffer.from(JSON.stringify(['projects', projectId])).toString('base64url')
}

function subjectOf(n: number): string {
  return `bench-user-${n % USERS}`
}

function getRequest(path: string, token: string): Buffer {
  return Buffer.from(
    `GET ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\nauthorization: Bearer ${token}\r\n\r\n`,
  )
}

/** Returns the ids of the projects, newest first, and of the users' jobs, in the order of the users. */
async function seed(url: string): Promise<{ projectIds: string[]; jobIds: string[] }> {
  const db = await openPostgres({ url })
  try {
    await migrate(db)
    while ((await buildNextIndex(db)) !== 'done');
    const ids = new IdGenerator(systemClock, systemRandom)
    const projectIds = Array.from({ length: PROJECTS }, () => ids.next('prj'))
    await db.transaction(async (tx) => {
      for (const [n, id] of projectIds.entries()) {
        await insertProject(tx, {
          id,
          name: `Quarterly report ${n}`,
          description: 'Numbers for the board, with a word on where they come from',
          metadata: JsonText.of({ team: 'finance', number: n }),
          createdBy: subjectOf(n),
          atMs: systemClock.now(),
        })
      }
    })
    const jobIds = Array.from({ length: USERS }, () => ids.next('job'))
    await db.transaction(async (tx) => {
      for (const [n, id] of jobIds.entries()) await insertJob(tx, finishedJob(id, subjectOf(n)))
    })
    return { projectIds: projectIds.toReversed(), jobIds }
  } finally {
    await db.close()
  }
}

function finishedJob(id: string, createdBy: string): JobRow {
  const nowMs = systemClock.now()
  const given = {
    id,
    input: JSON.stringify({ topic: 'sales', quarter: 3 }),
    project_id: null,
    created_by: createdBy,
    thread_id: `thread-of-${id}`,
    run_id: `run-of-${id}`,
  }
  return {
    ...newJob(REPORT, given, nowMs - 9_000),
    status: 'completed',
    output: JSON.stringify({ title: 'Quarterly report', pages: 12, text: 'Numbers for the board. '.repeat(20) }),
    settled_by: 'callback',
    start_attempts: 1,
    next_check_at: null,
    finished_at: nowMs,
    updated_at: nowMs,
  }
}
