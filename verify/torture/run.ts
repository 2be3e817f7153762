import { parseArgs } from 'node:util'
import { type TortureOptions, type TortureReport, torture } from './torture.ts'

const USAGE = 'npm run torture -- --jobs N --kills K [--engine postgres|sqlite] [--seed S] [--hurry] [--keep]'
/** The sandbox runtime keeps this many threads, and each job has its own. */
const MAX_JOBS = 10_000

/** Runs the kills from the command line, prints a table, and fails when a count that must be zero is not. */
async function main(): Promise<number> {
  const options = readOptions()
  if (typeof options === 'string') {
    process.stderr.write(`${options}\n${USAGE}\n`)
    return 64
  }
  const report = await torture(options)
  process.stdout.write(`${render(report)}\n`)
  return report.failed ? 1 : 0
}

function readOptions(): TortureOptions | string {
  const { values } = parseArgs({
    options: {
      jobs: { type: 'string', default: '500' },
      kills: { type: 'string', default: '10' },
      engine: { type: 'string', default: 'postgres' },
      seed: { type: 'string', default: String(Date.now() % 1_000_000) },
      hurry: { type: 'boolean', default: false },
      keep: { type: 'boolean', default: false },
    },
  })
  const [jobs, kills, seed] = [Number(values.jobs), Number(values.kills), Number(values.seed)]
  const { engine, hurry, keep } = values
  if (!Number.isInteger(jobs) || jobs < 1 || jobs > MAX_JOBS) return `--jobs must be from 1 to ${MAX_JOBS}`
  if (!Number.isInteger(kills) || kills < 0) return '--kills must be 0 or more'
  if (!Number.isInteger(seed)) return '--seed must be a whole number'
  if (engine !== 'postgres' && engine !== 'sqlite') return '--engine must be postgres or sqlite'
  return { engine, jobs, kills, seed, hurry, keep }
}

function render({ figures, violations, failed, folder }: TortureReport): string {
  const rows = [...figures, ...violations.map(({ name, count }): [string, string] => [name, String(count)])]
  const width = Math.max(...rows.map(([name]) => name.length))
  const lines = rows.map(([name, value]) => `${name.padEnd(width)}  ${value}`)
  lines.splice(figures.length, 0, '')
  const examples = violations.flatMap(({ name, examples }) => examples.slice(0, 3).map((one) => `  ${name}: ${one}`))
  const verdict = failed ? ['', ...examples, '', 'Failed: some counts are not zero.'] : ['', 'All counts are zero.']
  if (folder !== null) verdict.push(`Logs and findings: ${folder}`)
  return [...lines, ...verdict].join('\n')
}

process.exitCode = await main()
// Sockets of the proxies may still be open; everything else has ended.
process.exit()
