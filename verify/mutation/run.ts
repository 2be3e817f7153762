import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseArgs } from 'node:util'
import { MODULES, type MutatedModule } from './modules.ts'

const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const HERE = fileURLToPath(new URL('./', import.meta.url))
/** Inside the repository, so that the copied source finds its packages. */
const SCRATCH = join(ROOT, '.scratch')
const GOAL_PERCENT = 85

/** The part of Stryker's report that is used here. */
interface Report {
  files: Record<string, { source: string; mutants: Mutant[] }>
}

interface Mutant {
  mutatorName: string
  replacement: string
  status: string
  location: { start: { line: number; column: number }; end: { line: number; column: number } }
}

/**
 * `npm run mutation` changes each pure module one expression at a time and runs its tests. It prints the share of changes
 * that made a test fail, and every change that did not. `--only A,B` selects modules by the end of their path.
 */
function main(): number {
  const { values } = parseArgs({ options: { only: { type: 'string' }, workers: { type: 'string', default: '1' } } })
  const wanted = values.only?.split(',')
  const chosen = MODULES.filter(({ path }) => wanted === undefined || wanted.some((end) => path.endsWith(end)))
  if (chosen.length === 0) throw new Error(`No module ends with ${values.only}`)
  install()
  const scores = chosen.map((module) => measure(module, Number(values.workers)))
  return scores.every((score) => score >= GOAL_PERCENT) ? 0 : 1
}

function install(): void {
  if (existsSync(join(HERE, 'node_modules'))) return
  const args = ['ci', '--ignore-scripts', '--no-audit', '--no-fund']
  execFileSync('npm', args, { cwd: HERE, stdio: ['ignore', 'ignore', 'inherit'], shell: process.platform === 'win32' })
}

function measure(module: MutatedModule, workers: number): number {
  mkdirSync(SCRATCH, { recursive: true })
  const folder = mkdtempSync(join(SCRATCH, 'mutation-'))
  try {
    const report = join(folder, 'report.json')
    const config = join(folder, 'stryker.config.json')
    writeFileSync(config, JSON.stringify(configOf(module, { report, folder, workers })))
    const stryker = join(HERE, 'node_modules/@stryker-mutator/core/bin/stryker.js')
    const run = spawnSync(process.execPath, [stryker, 'run', config], { cwd: ROOT, encoding: 'utf8' })
    if (!existsSync(report)) throw new Error(`Stryker failed for ${module.path}:\n${run.stdout}${run.stderr}`)
    return print(module, JSON.parse(readFileSync(report, 'utf8')) as Report)
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

function configOf(
  { path, tests }: MutatedModule,
  { report, folder, workers }: { report: string; folder: string; workers: number },
): object {
  const files = tests.map((test) => `test/${test}.test.ts`).join(' ')
  return {
    mutate: [`src/${path}.ts`],
    testRunner: 'command',
    // One process for all files: starting processes would take most of the time.
    commandRunner: { command: `"${process.execPath}" --test --test-isolation=none ${files}` },
    plugins: [],
    reporters: ['json'],
    jsonReporter: { fileName: report },
    tempDirName: join(folder, 'sandbox'),
    // The tests read the source only, and everything else takes time to copy.
    ignorePatterns: [
      '**',
      '!src/**',
      '!test/unit/**',
      '!test/support/**',
      '!console/src/**',
      '!package.json',
      '!job-types.json',
    ],
    concurrency: workers,
    timeoutMS: 20_000,
    timeoutFactor: 4,
    allowConsoleColors: false,
  }
}

function print({ path }: MutatedModule, report: Report): number {
  const [file] = Object.values(report.files)
  const mutants = file?.mutants.filter(({ status }) => status !== 'Ignored' && status !== 'CompileError') ?? []
  const undetected = mutants.filter(({ status }) => status !== 'Killed' && status !== 'Timeout')
  const score = mutants.length === 0 ? 100 : ((mutants.length - undetected.length) / mutants.length) * 100
  say(`| ${path} | ${mutants.length} | ${mutants.length - undetected.length} | ${score.toFixed(1)} % |`)
  const lines = file?.source.split('\n') ?? []
  for (const { location, replacement, mutatorName } of undetected) {
    const { start, end } = location
    const line = lines[start.line - 1] ?? ''
    const was = line.slice(start.column - 1, end.line === start.line ? end.column - 1 : undefined)
    say(`  ${start.line}: ${mutatorName}: ${was.trim()}  →  ${replacement.replaceAll(/\s+/g, ' ').slice(0, 100)}`)
  }
  return score
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

process.exitCode = main()
