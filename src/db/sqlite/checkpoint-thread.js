import { DatabaseSync } from 'node:sqlite'
import { workerData } from 'node:worker_threads'

// Plain JavaScript: this thread starts for each checkpoint, and the type stripper would take most of its time.
const connection = new DatabaseSync(workerData, { timeout: 1_000 })
connection.exec('pragma synchronous = full; pragma journal_size_limit = 67108864; pragma wal_checkpoint(passive)')
// The first commit after it starts the log anew, and waits for the disk. So it is made here; it changes nothing.
const { user_version: version } = connection.prepare('pragma user_version').get()
connection.exec(`pragma user_version = ${version}`)
connection.close()
