import { rmSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { killTree } from './process-tree.ts'

/**
 * Outlives the test process to clean up after its programs, however it dies: its standard input ends with the test
 * process. A line there is `+pid` for a program that started, `-pid` for one that ended; the argument is the folder to
 * delete.
 */
const [folder] = process.argv.slice(2)
const running = new Set<number>()
for await (const line of createInterface({ input: process.stdin })) {
  const pid = Number(line.slice(1))
  if (line.startsWith('+')) running.add(pid)
  else running.delete(pid)
}
for (const pid of running) killTree(pid)
if (folder !== undefined) rmSync(folder, { recursive: true, force: true, maxRetries: 5 })
