import { rmSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { endTree } from './process-tree.ts'

/**
 * Outlives the test process to clean up after it, however it dies, kill -9 included: its standard input ends with the
 * test process. Each line there names the server to end then, as `pid signal`, or `none`; the argument is the folder to
 * delete.
 */
const [folder] = process.argv.slice(2)
let last = 'none'
for await (const line of createInterface({ input: process.stdin })) last = line

const [pid, signal] = last.split(' ')
if (pid !== undefined && signal !== undefined) await endTree(Number(pid), signal as NodeJS.Signals)
if (folder !== undefined) rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
