import { cpSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { freshFolder } from './program.ts'

const ROOT = fileURLToPath(new URL('../../', import.meta.url))

/** The migration that the next release adds, and the index that PostgreSQL builds after it. */
export const NEXT_MIGRATION = '9999_colors'
const FILES = {
  [`${NEXT_MIGRATION}.sql`]: `alter table projects add column color text;
alter table jobs add column color text;
create table colors (color text primary key, uses bigint not null);
insert into colors (color, uses) values ('red', 0);
`,
  [`${NEXT_MIGRATION}.indexes.sql`]: 'create index if not exists projects_by_color on projects (color, id);\n',
}

/** A made-up next release in a folder of its own: this source with one more migration. Returns its main file. */
export function nextRelease(): string {
  const folder = freshFolder()
  for (const part of ['src', 'package.json']) cpSync(join(ROOT, part), join(folder, part), { recursive: true })
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  for (const [name, text] of Object.entries(FILES)) writeFileSync(join(folder, 'src/db/migrations', name), text)
  return join(folder, 'src/main.ts')
}
