import { readFileSync } from 'node:fs'
import { runCommandLine } from '../../src/cli/command-line.ts'
import type { Ending, Settings } from './program.ts'

/**
 * Runs a command that ends by itself, as `src/main.ts` does but in this process: a process of its own takes most of a second
 * to start. The command sees only the given settings. A relative path would start at the folder of the test process. For
 * `serve` and `dev`, which write their log to the standard output of the process, see `Program`.
 */
export async function runCommand(args: readonly string[], settings: Settings = {}): Promise<Ending> {
  const said = { output: '', errors: '' }
  const code = await runCommandLine({
    env: settings,
    args: [...args],
    print: (line) => {
      said.output += `${line}\n`
    },
    write: (piece) => {
      said.output += piece
    },
    printError: (line) => {
      said.errors += `${line}\n`
    },
    readFile: (path) => readFileSync(path, 'utf8'),
    stopping: new AbortController().signal,
    onReload: () => {},
  })
  return { code, ...said }
}
