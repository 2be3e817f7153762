import { type ChildProcess, spawn } from 'node:child_process'
import { globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buildConsole } from '../src/cli/startup/build-console.ts'
import { COMPILE_CACHE } from './support/compile-cache.ts'
import { isCi, startSharedServices } from './support/services.ts'
import { writeTestGroups } from './support/test-groups.ts'

/**
 * What `npm test` runs: one PostgreSQL and one Redis for all test files, where the machine has them, the console when its
 * sources have changed, then `node --test`.
 * Arguments are files, patterns or folders in place of all tests; those that begin with a dash go to node. It prints the
 * slowest files and what was skipped, and fails when a test failed, when none ran or, with CI set, when any was skipped.
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
      const files = filesOf(args.filter((arg) => !arg.startsWith('-')))
      const options = args.filter((arg) => arg.startsWith('-'))
      const modules = files.length > 0 ? writeTestGroups(files, folder) : []
      if (modules.length === 0) return report(false, { skipped: [], ran: 0, files: [] })
      child = spawn(process.execPath, [...nodeArguments(options, results), ...modules], {
        env: { ...services.env, ...compileCacheFor(options), TEST_PORTS: ports },
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

/** The other folders of tests have commands of their own: see the table in CONTRIBUTING.md. */
const ALL_TESTS = 'test/{unit,db,http,e2e,client,browser}/**/*.test.ts'

/**
 * The order of the tests. The longest files come first, so that at the end of the run no long file is left that keeps only
 * one processor busy.
 */
const ORDER = [
  'test/e2e/torture.',
  'test/package/',
  'test/browser/',
  'test/e2e/operations.',
  'test/e2e/front-end.',
  'test/http/',
  'test/db/',
  'test/unit/',
  'test/e2e/',
]

function filesOf(patterns: string[]): string[] {
  const found = patterns.length > 0 ? patterns.flatMap(testsIn) : globSync(ALL_TESTS)
  const placeOf = (file: string) => {
    const place = ORDER.findIndex((prefix) => file.startsWith(prefix))
    return place === -1 ? ORDER.length : place
  }
  return [...new Set(found)].sort().sort((a, b) => placeOf(a) - placeOf(b))
}

/** A folder stands for the tests below it, without those of installed packages. */
function testsIn(pattern: string): string[] {
  const isFolder = statSync(pattern, { throwIfNoEntry: false })?.isDirectory()
  const found = globSync(isFolder ? join(pattern, '**/*.test.ts') : pattern, { exclude: ['**/node_modules'] })
  if (found.length === 0) throw new Error(`No test file fits ${pattern}`)
  return found
}

function nodeArguments(options: string[], results: string): string[] {
  return [
    '--test',
    // Many tests wait for other processes, so more than one for each core keeps the machine busy.
    '--test-concurrency=4',
    // Far beyond any process of tests on a busy machine: one that hangs fails instead of holding up the run.
    '--test-timeout=1800000',
    '--test-reporter=spec',
    '--test-reporter-destination=stdout',
    '--test-reporter=tap',
    `--test-reporter-destination=${results}`,
    ...options,
  ]
}

/** Code from the cache would make the coverage less exact. */
function compileCacheFor(options: string[]): Record<string, string> {
  return options.includes('--experimental-test-coverage') ? {} : { NODE_COMPILE_CACHE: COMPILE_CACHE }
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
  files: { name: string; seconds: number }[]
}

const SLOWEST = 10

function readResults(file: string): Results {
  const tap = readFileSync(file, 'utf8')
  const skipped = Array.from(tap.matchAll(/^\s*ok \d+ - (.*?) # SKIP ?(.*)$/gm), ([, name, why]) => `${name}: ${why}`)
  return {
    skipped,
    files: Array.from(
      // Each file is a suite that has the file's path as its name.
      tap.matchAll(/^(?:not )?ok \d+ - (\S+\.test\.ts)\n +---\n +duration_ms: ([\d.]+)$/gm),
      ([, name = '', ms]) => ({ name, seconds: Number(ms) / 1_000 }),
    ),
    ran: Array.from(tap.matchAll(/^# (?:pass|fail) (\d+)$/gm), ([, n]) => Number(n)).reduce((a, b) => a + b, 0),
  }
}

function report(failed: boolean, { skipped, ran, files }: Results): number {
  const say = (line: string) => process.stdout.write(`${line}\n`)
  const slowest = files.toSorted((a, b) => b.seconds - a.seconds).slice(0, SLOWEST)
  if (slowest.length > 1) say(`\nThe slowest of ${files.length} files:`)
  if (slowest.length > 1) for (const { name, seconds } of slowest) say(`${seconds.toFixed(1).padStart(7)} s  ${name}`)
  if (skipped.length > 0) say(`\nSkipped${isCi() ? ', which CI does not allow' : ''}:`)
  for (const line of skipped) say(`  ${line}`)
  if (ran === 0) say('\nNo test ran')
  return failed || ran === 0 || (isCi() && skipped.length > 0) ? 1 : 0
}

process.exitCode = await main(process.argv.slice(2))
