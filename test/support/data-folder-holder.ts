import { lockDataFolder } from '../../src/db/sqlite/data-folder.ts'

/** Holds the data folder given until it is killed or its input ends, which it announces. */
const { release } = lockDataFolder(process.argv[2] ?? '')
process.stdout.write('held\n')
for await (const _ of process.stdin);
release()
process.stdout.write('released\n')
