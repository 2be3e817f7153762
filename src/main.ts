#!/usr/bin/env node
import { readFileSync } from 'node:fs'
import { runCommandLine } from './cli/command-line.ts'

const stopping = new AbortController()
for (const signal of ['SIGTERM', 'SIGINT'] as const) {
  process.on(signal, () => {
    // A second Ctrl-C ends the process at once.
    if (stopping.signal.aborted && signal === 'SIGINT') process.exit(130)
    stopping.abort(signal)
  })
}

// SIGHUP ends a process that does not listen. `serve` can be asked to reload while it still starts, which may take long.
let reload: (() => void) | undefined
let isHungUp = false
if (process.argv[2] === 'serve') {
  process.on('SIGHUP', () => {
    isHungUp = true
    reload?.()
  })
}

// A reader that closes the pipe early, such as `head`, is not an error.
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
  write: (piece) => process.stdout.write(piece),
  printError: (line) => process.stderr.write(`${line}\n`),
  readFile: (path) => readFileSync(path, 'utf8'),
  stopping: stopping.signal,
  onReload: (listener) => {
    reload = listener
    if (isHungUp) listener()
  },
})

// Wait until buffered output is written to the pipe. Then end the process, even if other handles are open.
const written = [process.stdout, process.stderr].map((stream) => new Promise((done) => stream.write('', done)))
await Promise.all(written)
process.exit()
