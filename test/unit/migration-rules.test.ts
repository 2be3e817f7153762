import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { MIGRATIONS } from '../../src/db/migrate.ts'

/** What takes long on a large table, or keeps it locked for long, by the pattern of its statement. */
const REFUSED: readonly [RegExp, string][] = [
  [/^(?:update|delete|with|truncate)\b/, 'changes rows: the running service does it in batches'],
  [/^insert\b.*\bselect\b/, 'copies rows: the running service does it in batches'],
  [/^create (?:unique )?index\b/, 'builds an index: it belongs in the .indexes.sql file'],
  [/^alter table\b.*\b(?:type|set not null)\b/, 'reads or rewrites the whole table: add a column instead'],
  [/^alter table\b.*\badd (?:constraint|check|foreign)\b/, 'reads the whole table: check it in the service'],
  [/^(?:cluster|vacuum|reindex|lock)\b/, 'locks the whole table'],
]

function faultsOf(script: string): string[] {
  const statements = script
    .replaceAll(/--.*$/gm, '')
    .split(';')
    .map((text) => text.replaceAll(/\s+/g, ' ').trim().toLowerCase())
  return statements.flatMap((text) => REFUSED.filter(([pattern]) => pattern.test(text)).map(([, why]) => why))
}

/** The first digits of the SHA-256 of each file, as released in 1.0.0. */
const BASELINES = { '0001_baseline.sqlite.sql': '124d368e9c6b5e6d', '0001_baseline.postgres.sql': '9aa2aea791fec9e4' }

test('the baselines are those of 1.0.0: a later change of the schema is a migration', () => {
  for (const [file, digits] of Object.entries(BASELINES)) {
    const script = readFileSync(new URL(file, MIGRATIONS))
    assert.ok(createHash('sha256').update(script).digest('hex').startsWith(digits), `${file} was changed`)
  }
})

test('no migration after the baseline changes the data of a whole table or keeps a table locked for long', () => {
  const steps = readdirSync(MIGRATIONS).filter((file) => !/^0001_|\.indexes\./.test(file) && file.endsWith('.sql'))
  for (const file of steps) assert.deepEqual(faultsOf(readFileSync(new URL(file, MIGRATIONS), 'utf8')), [], file)
})

test('the rule for migrations refuses what takes long, and allows what does not', () => {
  const refused = [
    `update projects set color = 'red'`,
    'delete from events',
    '-- A copy.\ninsert into colors select distinct color from projects',
    'create index if not exists a on jobs (color)',
    'alter table jobs\n  alter column color type bigint',
    'alter table jobs alter column color set not null',
    `alter table jobs add constraint is_color check (color <> '')`,
  ]
  for (const script of refused) assert.equal(faultsOf(script).length, 1, script)
  const allowed = `
    alter table jobs add column color text; -- update it later
    alter table jobs add column uses bigint not null default 0;
    create table colors (color text primary key, type text not null);
    insert into colors (color, type) values ('red', 'warm');
    drop index if exists jobs_by_color;`
  assert.deepEqual(faultsOf(allowed), [])
})
