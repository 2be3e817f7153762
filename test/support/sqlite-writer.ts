import { sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'

/** Writes rows to the database given until it is killed, and says the number of each once it is acknowledged. */
const db = await openSqlite({ path: process.argv[2] ?? '' })
for (let n = 0; ; n += 2) {
  await db.query(sql`insert into rows_written (n) values (${n})`)
  process.stdout.write(`${n}\n`)
  await db.transaction(async (tx) => {
    await tx.query(sql`insert into rows_written (n) values (${n + 1})`)
    await tx.query(sql`update rows_written set twice = n * 2 where n = ${n + 1}`)
  })
  process.stdout.write(`${n + 1}\n`)
}
