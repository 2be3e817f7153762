import { sql } from '../../src/db/sql.ts'
import { openSqlite } from '../../src/db/sqlite/sqlite.ts'

/** Eight at a time write rows to the database given until it is killed; each number is printed once it is acknowledged. */
const db = await openSqlite({ path: process.argv[2] ?? '', maxLogPages: 40 })
await db.query(sql`create table rows_written (n integer primary key, note text)`)
let last = 0
const write = async () => {
  for (;;) {
    last += 1
    const n = last
    await db.transaction(async (tx) => {
      await tx.query(sql`insert into rows_written (n, note) values (${n}, ${'x'.repeat(n % 3_000)})`)
      await tx.query(sql`update rows_written set note = ${`updated by ${n}`} where n = ${n - 20}`)
    })
    process.stdout.write(`${n}\n`)
  }
}
await Promise.all(Array.from({ length: 8 }, write))
