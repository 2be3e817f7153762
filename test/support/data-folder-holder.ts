import { lockDataFolder } from '../../src/db/sqlite/data-folder.ts'

/** Locks the given data folder until the process is killed or its input ends. Prints a line when it has the lock. */
const { release } = lockDataFolder(process.argv[2] ?? '')
process.stdout.write('held\n')
for await (const _ of process.stdin);
release()
process.stdout.write('released\n')
