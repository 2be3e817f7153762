import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readSources } from '../support/source-files.ts'

/** The tables of each feature: only the SQL in the feature's own folder names them. */
const TABLES: Record<string, readonly string[]> = {
  projects: ['projects'],
  users: ['users', 'user_states', 'user_state_version'],
  'service-accounts': ['service_accounts', 'service_keys'],
  jobs: [
    'jobs',
    'job_runs',
    'callbacks',
    'refused_callbacks',
    'job_timeline',
    'job_tombstones',
    'runtime_identities',
    'uncommon_jobs',
    'job_checks',
    'threads',
  ],
  usage: ['usage_counters', 'usage_limits', 'usage_thresholds'],
  events: ['events', 'event_log'],
  push: ['devices', 'notifications', 'notification_recipients', 'deliveries'],
  webhooks: ['webhook_endpoints', 'webhook_deliveries', 'webhook_cursor'],
  stats: ['stats', 'stats_cursors'],
  operations: ['operations', 'operation_items'],
  audit: ['audit'],
  http: ['idempotency_keys'],
  db: ['schema_migrations', 'nodes', 'service_clock'],
}

interface Exception {
  file: string
  declaration: string
  table: string
  reason: string
}

/** Statements that must read the tables of two features at once. Anything else asks the owner, or is given a function. */
const EXCEPTIONS: readonly Exception[] = [
  {
    file: 'src/jobs/uncommon-jobs.ts',
    declaration: 'countRuns',
    table: 'usage_counters',
    reason: 'one statement sees one moment: a job that ends meanwhile is counted once, as running or as ended',
  },
]

interface Code {
  /** TypeScript by its path from the root of the repository. */
  sources: Record<string, string>
  migrations: string
}

interface Rules {
  tables: Record<string, readonly string[]>
  exceptions: readonly Exception[]
}

function findFaults(code: Code, rules: Rules = { tables: TABLES, exceptions: EXCEPTIONS }): string[] {
  const owners = Object.entries(rules.tables).flatMap(([feature, tables]) =>
    tables.map((table) => ({ table, feature })),
  )
  const uses = Object.entries(code.sources).flatMap(([file, source]) => tableUsesIn(file, source, owners))
  const created = tablesCreatedIn(code)
  const isException = (use: TableUse) => rules.exceptions.some((exception) => isOf(exception, use))
  const foreign = uses.filter((use) => use.feature !== folderOf(use.file) && !isException(use))
  return [
    ...created
      .filter((table) => !owners.some((owner) => owner.table === table))
      .map((table) => `${table} has no owner`),
    ...owners.filter(({ table }) => !created.includes(table)).map(({ table }) => `no migration creates ${table}`),
    ...foreign.map(({ file, declaration, table, feature }) => `${file}: ${declaration} names ${table} of ${feature}`),
    ...rules.exceptions
      .filter((exception) => !uses.some((use) => isOf(exception, use)))
      .map(({ file, declaration, table }) => `${file}: ${declaration} does not name ${table}: remove the exception`),
    ...Object.entries(code.sources)
      .filter(([file, source]) => folderOf(file) !== 'db' && /\bnew Sql\(|\btx\.exec\(/.test(source))
      .map(([file]) => `${file} runs SQL that is not in a template`),
  ]
}

interface TableUse {
  file: string
  /** The function, class or constant at the top level of the file. */
  declaration: string
  table: string
  feature: string
}

function isOf(exception: Exception, use: TableUse): boolean {
  return exception.file === use.file && exception.declaration === use.declaration && exception.table === use.table
}

function tableUsesIn(file: string, source: string, owners: readonly { table: string; feature: string }[]): TableUse[] {
  return statementsIn(source).flatMap(({ text, declaration }) => {
    const words = new Set(text.replace(/'[^']*'/g, '').match(/\w+/g))
    return owners.filter(({ table }) => words.has(table)).map((owner) => ({ file, declaration, ...owner }))
  })
}

/** The text of every template tagged `sql`, without its values, and the declaration that it stands in. */
function statementsIn(source: string): { text: string; declaration: string }[] {
  return Array.from(source.matchAll(/\bsql`/g), ({ index }) => ({
    text: readTemplate(source, index + 'sql`'.length).text,
    declaration: declarationAt(source, index),
  }))
}

/** A template nested in a value is left out here: if it is tagged, it is a statement of its own. */
function readTemplate(source: string, start: number): { text: string; end: number } {
  let text = ''
  let at = start
  while (at < source.length && source[at] !== '`') {
    if (source.startsWith('${', at)) {
      at = endOfValue(source, at + 2)
      text += ' '
    } else {
      const length = source[at] === '\\' ? 2 : 1
      text += source.slice(at, at + length)
      at += length
    }
  }
  return { text, end: at + 1 }
}

function endOfValue(source: string, start: number): number {
  let depth = 1
  let at = start
  while (at < source.length && depth > 0) {
    const character = source[at] ?? ''
    if (character === '`') at = readTemplate(source, at + 1).end
    else if (character === "'" || character === '"') at = source.indexOf(character, at + 1) + 1
    else {
      if (character === '{') depth += 1
      if (character === '}') depth -= 1
      at += 1
    }
  }
  return at
}

function declarationAt(source: string, index: number): string {
  const before = source.slice(0, index)
  const names = before.matchAll(/^(?:export )?(?:async )?(?:function|class|const|let) (\w+)/gm)
  return Array.from(names, ([, name]) => name ?? '').at(-1) ?? ''
}

function tablesCreatedIn({ sources, migrations }: Code): string[] {
  const scripts = `${migrations.replace(/--.*$/gm, '')}\n${sources['src/db/migrate.ts'] ?? ''}`
  const names = scripts.matchAll(/\bcreate table (?:if not exists )?"?(\w+)/gi)
  return [...new Set(Array.from(names, ([, name]) => name ?? ''))]
}

/** `src/jobs/worker/sweep.ts` is in `jobs`. */
function folderOf(file: string): string {
  return file.split('/')[1] ?? ''
}

function readCode(): Code {
  return { sources: readSources(), migrations: Object.values(readSources('.sql')).join('\n') }
}

test('each table is named only in the SQL of its feature', () => {
  assert.deepEqual(findFaults(readCode()), [])
})

test('the source is really read: every table is found in the SQL of its feature', () => {
  const { sources } = readCode()
  for (const [feature, tables] of Object.entries(TABLES)) {
    const owners = tables.map((table) => ({ table, feature }))
    const own = Object.entries(sources).filter(([file]) => folderOf(file) === feature)
    const named = new Set(own.flatMap(([file, source]) => tableUsesIn(file, source, owners)).map(({ table }) => table))
    assert.deepEqual([...named].sort(), [...tables].sort())
  }
  const statements = statementsIn(sources['src/users/user-store.ts'] ?? '')
  assert.ok(statements.some(({ text, declaration }) => declaration === 'upsertUser' && /insert into users/.test(text)))
})

const RULES: Rules = { tables: { jobs: ['jobs'], users: ['users'] }, exceptions: [] }
const MIGRATIONS = 'create table jobs (id text);\ncreate table users (sub text);'
const faultsOf = (sources: Record<string, string>, rules: Partial<Rules> = {}, migrations = MIGRATIONS) =>
  findFaults({ sources, migrations }, { ...RULES, ...rules })

const VIOLATIONS: { what: string; text: string; declaration: string }[] = [
  { what: 'a table of another feature', text: 'function a() { sql`select 1 from users` }', declaration: 'a' },
  {
    what: 'a join over lines',
    text: 'async function a() {\n sql`\n select 1 from jobs\n join users u on 1 = 1` }',
    declaration: 'a',
  },
  { what: 'a table in a fragment', text: 'export const LIST = { table: sql`users` }', declaration: 'LIST' },
  {
    what: 'a table in a template within a value',
    text: "function a(b) { sql`select ${b ? sql`x from users` : '}`'} from jobs` }",
    declaration: 'a',
  },
  {
    what: 'a table after a value with braces',
    text: "export class A {\n  b() { sql`select ${c({ d: '`' })} from users` }\n}",
    declaration: 'A',
  },
]
for (const { what, text, declaration } of VIOLATIONS) {
  test(`${what} is found`, () => {
    assert.deepEqual(faultsOf({ 'src/jobs/a.ts': text }), [`src/jobs/a.ts: ${declaration} names users of users`])
  })
}

test('a table without an owner is found, and an owner without its table', () => {
  const migrations = `${MIGRATIONS}\ncreate table if not exists invoices (id text);\n-- create table dropped`
  assert.deepEqual(faultsOf({}, {}, migrations), ['invoices has no owner'])
  assert.deepEqual(faultsOf({}, { tables: { ...RULES.tables, billing: ['invoices'] } }), [
    'no migration creates invoices',
  ])
})

test('SQL outside of a template is found', () => {
  const sources = { 'src/jobs/a.ts': "new Sql(['select 1 from users'], [])", 'src/users/a.ts': 'await tx.exec(script)' }
  assert.deepEqual(faultsOf(sources), [
    'src/jobs/a.ts runs SQL that is not in a template',
    'src/users/a.ts runs SQL that is not in a template',
  ])
})

test('an exception allows one table in one declaration, and must be needed', () => {
  const exceptions = [{ file: 'src/jobs/a.ts', declaration: 'a', table: 'users', reason: 'one moment' }]
  const text = 'function a() { sql`select 1 from users` }\nfunction b() { sql`select 1 from users` }'
  assert.deepEqual(faultsOf({ 'src/jobs/a.ts': text }, { exceptions }), ['src/jobs/a.ts: b names users of users'])
  assert.deepEqual(faultsOf({}, { exceptions }), ['src/jobs/a.ts: a does not name users: remove the exception'])
})

test('a name that is no table of the statement is not a fault', () => {
  const sources = {
    'src/users/a.ts': 'const users = sql`select 1 from users`',
    'src/jobs/deep/a.ts': "function users() { sql`select 'users', users_total, ${users} from jobs` }",
  }
  assert.deepEqual(faultsOf(sources), [])
})
