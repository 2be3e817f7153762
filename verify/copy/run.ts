import { spawn } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { migrate } from '../../src/db/migrate.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'
import { startPostgres } from '../../test/support/postgres.ts'
import { seedHistory } from '../bench/growth/seed-history.ts'

const PROGRAM = fileURLToPath(new URL('../../bin/project-api.js', import.meta.url))

/** `npm run verify:copy -- [JOBS]`: copies that many jobs from SQLite to PostgreSQL and back, and compares the three. */
const jobs = Number(process.argv[2] ?? 200_000)
const folder = mkdtempSync(join(tmpdir(), 'verify-copy-'))
const [first, last] = [join(folder, 'first'), join(folder, 'last')]
const postgres = await startPostgres()
try {
  mkdirSync(first)
  const db = await openSqlite({ path: join(first, 'project-api.db') })
  await migrate(db)
  await seedHistory(db, jobs)
  await db.close()
  const url = await postgres.createDatabase()
  const there = await copy({ DATA_DIR: first }, url)
  const back = await copy({ DATABASE_URL: url }, last)
  print(`| | rows | seconds | peak memory |`)
  print('|---|---|---|---|')
  print(`| SQLite to PostgreSQL | ${there.rows} | ${there.seconds} | ${there.megabytes} MB |`)
  print(`| PostgreSQL to SQLite | ${back.rows} | ${back.seconds} | ${back.megabytes} MB |`)
  const isEqual = JSON.stringify(there.tables) === JSON.stringify(back.tables)
  print(`${jobs} jobs, ${there.tables.length} tables: ${isEqual ? 'equal' : 'DIFFERENT'}`)
  if (!isEqual) process.exitCode = 1
} finally {
  await postgres.stop()
  rmSync(folder, { recursive: true, force: true })
}

async function copy(settings: Record<string, string>, to: string) {
  const startedMs = performance.now()
  const env = { PATH: process.env.PATH, NODE_ENV: 'test', ISSUER_URL: 'http://127.0.0.1:1', ...settings }
  const child = spawn(process.execPath, [PROGRAM, 'copy', '--to', to], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  let peakKb = 0
  const watch = setInterval(() => {
    peakKb = Math.max(peakKb, peakMemoryOf(child.pid))
  }, 200)
  const output = await text(child.stdout)
  clearInterval(watch)
  const tables = output
    .split('\n')
    .filter((line) => /^\w+ +\d+ {2}[0-9a-f]{32}$/.test(line))
    .sort()
  if (!output.includes('Copied: ')) throw new Error(`The copy failed:\n${output}`)
  const rows = tables.reduce((sum, line) => sum + Number(line.split(/ +/)[1]), 0)
  const seconds = Math.round((performance.now() - startedMs) / 1_000)
  return { tables, rows, seconds, megabytes: Math.round(peakKb / 1_024) }
}

function peakMemoryOf(pid: number | undefined): number {
  try {
    return Number(/VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0)
  } catch {
    return 0
  }
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}
