import { type ChildProcess, spawn } from 'node:child_process'
import { globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buildConsole } from '../src/cli/startup/build-console.ts'
import { COMPILE_CACHE } from './support/compile-cache.ts'
import { isCi, startSharedServices } from './support/services.ts'

/**
 * What `npm test` runs: one PostgreSQL and one Redis for all test files, where the machine has them, the console when its
 * sources have changed, then `node --test`.
 * Arguments are files, patterns or folders in place of all tests; those that begin with a dash go to node. It says what
 * was skipped, and fails when a test failed, when none ran or, with CI set, when any was skipped.
 */
async function main(args: string[]): Promise<number> {
  const folder = mkdtempSync(join(tmpdir(), 'test-run-'))
  let child: ChildProcess | undefined
  let interrupted = false
  // The terminal signals the child as well; this one stays to stop the servers.
  const interrupt = () => {
    interrupted = true
    child?.kill('SIGTERM')
  }
  process.on('SIGINT', interrupt).on('SIGTERM', interrupt)
  try {
    const [services, problem] = await Promise.all([startSharedServices(), buildConsole()])
    if (problem !== null) process.stderr.write(`${problem}\n`)
    try {
      if (interrupted) return 130
      const results = join(folder, 'results.tap')
      const ports = join(folder, 'ports')
      mkdirSync(ports)
      child = spawn(process.execPath, nodeArguments(args, results), {
        // Each test file is a process of its own.
        env: { ...services.env, NODE_COMPILE_CACHE: COMPILE_CACHE, TEST_PORTS: ports },
        stdio: 'inherit',
      })
      const failed = await exitOf(child)
      return interrupted ? 130 : report(failed, readResults(results))
    } finally {
      await services.stop()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

/** Without test/runtime, which wants the real agent runtime installed: `npm run test:runtime`. */
const ALL_TESTS = 'test/{unit,db,http,e2e,client,browser}/**/*.test.ts'

function nodeArguments(args: string[], results: string): string[] {
  const patterns = args.filter((arg) => !arg.startsWith('-'))
  return [
    '--test',
    // Many tests wait for other processes, so more than one for each core keeps the machine busy.
    '--test-concurrency=4',
    // Far beyond any test on a busy machine: a test that hangs fails instead of holding up the run.
    '--test-timeout=600000',
    '--test-reporter=spec',
    '--test-reporter-destination=stdout',
    '--test-reporter=tap',
    `--test-reporter-destination=${results}`,
    ...args.filter((arg) => arg.startsWith('-')),
    ...(patterns.length > 0 ? patterns.flatMap(testsIn) : [ALL_TESTS]),
  ]
}

/** A folder stands for the tests below it, without those of installed packages. */
function testsIn(pattern: string): string[] {
  if (!statSync(pattern, { throwIfNoEntry: false })?.isDirectory()) return [pattern]
  const found = globSync(join(pattern, '**/*.test.ts'), { exclude: ['**/node_modules'] })
  // With no name at all, node would look for tests by itself.
  return found.length > 0 ? found : [pattern]
}

/** Resolves to whether the child failed. */
function exitOf(child: ChildProcess): Promise<boolean> {
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (code) => resolve(code !== 0))
  })
}

interface Results {
  skipped: string[]
  ran: number
}

function readResults(file: string): Results {
  const tap = readFileSync(file, 'utf8')
  const skipped = Array.from(tap.matchAll(/^\s*ok \d+ - (.*?) # SKIP ?(.*)$/gm), ([, name, why]) => `${name}: ${why}`)
  return {
    skipped,
    ran: Array.from(tap.matchAll(/^# (?:pass|fail) (\d+)$/gm), ([, n]) => Number(n)).reduce((a, b) => a + b, 0),
  }
}

function report(failed: boolean, { skipped, ran }: Results): number {
  const say = (line: string) => process.stdout.write(`${line}\n`)
  if (skipped.length > 0) say(`\nSkipped${isCi() ? ', which CI does not allow' : ''}:`)
  for (const line of skipped) say(`  ${line}`)
  if (ran === 0) say('\nNo test ran')
  return failed || ran === 0 || (isCi() && skipped.length > 0) ? 1 : 0
}

process.exitCode = await main(process.argv.slice(2))
