#!/usr/bin/env node
import { enableCompileCache } from 'node:module'

// Before anything else is loaded: a second start then reads compiled code instead of stripping types again.
enableCompileCache()
const { runCommandLine } = await import('./cli/command-line.ts')
const { readFileSync } = await import('node:fs')

const stopping = new AbortController()
for (const signal of ['SIGTERM', 'SIGINT'] as const) {
  process.on(signal, () => {
    // A second Ctrl-C means now.
    if (stopping.signal.aborted && signal === 'SIGINT') process.exit(130)
    stopping.abort(signal)
  })
}

// Whoever stops reading, as `head` does, has seen enough: that is no failure.
for (const stream of [process.stdout, process.stderr]) {
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
  })
}

/** The only file that reads the environment, catches signals and sets the exit code. */
process.exitCode = await runCommandLine({
  env: process.env,
  args: process.argv.slice(2),
  print: (line) => process.stdout.write(`${line}\n`),
  printError: (line) => process.stderr.write(`${line}\n`),
  readFile: (path) => readFileSync(path, 'utf8'),
  stopping: stopping.signal,
})

// What is still on its way into a pipe goes out first; whatever else is open then ends with the process.
const written = [process.stdout, process.stderr].map((stream) => new Promise((done) => stream.write('', done)))
await Promise.all(written)
process.exit()
