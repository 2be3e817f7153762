import { existsSync, rmSync, writeFileSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'

/** Holds the sync of a commit, then fails that of another, and prints what the process saw, a line each. */
const [path = '', control = ''] = process.argv.slice(2)
const saw = (what: string) => writeSync(process.stdout.fd, `${what}\n`)
const turn = () => new Promise((resolve) => setImmediate(resolve))

const db = await openSqlite({ path })
await db.query(sql`create table t (n integer)`)
db.listen((topic) => saw(`announced ${topic}`))
const insert = (n: number) =>
  db.transaction(async (tx) => {
    await tx.query(sql`insert into t values (${n})`)
    tx.announce('events')
  })
const read = async () => (await db.query<{ n: number }>(sql`select n from t order by n`)).map(({ n }) => n).join()

writeFileSync(join(control, 'hold'), '')
const held = insert(1).then(() => saw('resolved'))
while (!existsSync(join(control, 'held'))) await turn()
let unseen = 0
for (let turns = 0; turns < 1_000; turns++) {
  await turn()
  if ((await read()) === '') unseen++
}
saw(`unseen by ${unseen} reads`)
rmSync(join(control, 'hold'))
await held
saw(`rows ${await read()}`)

writeFileSync(join(control, 'fail'), '')
await insert(2).catch((error: Error) => saw(error.name))
saw(`rows ${await read()}`)
await turn()
await turn()
saw('went on')
