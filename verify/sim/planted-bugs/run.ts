import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { startWorker } from '../worker-process.ts'
import { misfits } from './fit.ts'
import { PLANTED_BUGS, type PlantedBug } from './planted-bugs.ts'
import { readSeeds, type Seeds, writeSeeds } from './seeds.ts'

interface SearchResult {
  bug: PlantedBug
  /** The seed that found the bug; null when none did. */
  seed: number | null
  invariant: string
  what: string
}

/**
 * `npm run sim:mutants` plants one bug after the other and plays seeds until one breaks an invariant. The run fails when a
 * bug is not found, or when its text is no longer in the source. The seed that found a bug last time goes first, then 1 to
 * `--seeds N`. `--search` plays them from 1 and stores the first that finds each bug. `--only A,B` plants only these.
 */
async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      seeds: { type: 'string', default: '3000' },
      only: { type: 'string' },
      search: { type: 'boolean', default: false },
      workers: { type: 'string', default: String(availableParallelism()) },
    },
  })
  const chosen = PLANTED_BUGS.filter(({ name }) => values.only === undefined || values.only.split(',').includes(name))
  const reports = chosen.flatMap(misfits)
  for (const report of reports) say(report)
  if (reports.length > 0 || chosen.length === 0) return 1
  const startedMs = performance.now()
  const known = readSeeds()
  const queue = [...chosen]
  const results: SearchResult[] = []
  const searchNext = async () => {
    for (let bug = queue.shift(); bug; bug = queue.shift()) {
      const result = await search(bug, Number(values.seeds), values.search ? undefined : known[bug.name])
      results.push(result)
      say(row(result))
    }
  }
  say('| planted bug | what it gets wrong | seed | found by |\n|---|---|---|---|')
  await Promise.all(Array.from({ length: Number(values.workers) }, searchNext))
  if (values.search) writeSeeds(learned(known, results))
  const found = results.filter(({ seed }) => seed !== null).length
  say(`${found}/${chosen.length} in ${((performance.now() - startedMs) / 1000).toFixed(0)} s`)
  return found === chosen.length ? 0 : 1
}

async function search(bug: PlantedBug, seeds: number, likely: number | undefined): Promise<SearchResult> {
  const result: SearchResult = { bug, seed: null, invariant: '', what: '' }
  const task = { first: 1, step: 1, end: seeds + 1, plantedBug: bug.name, ...(likely === undefined ? {} : { likely }) }
  const worker = startWorker(task, ({ seed, violations }) => {
    const [first] = violations
    if (first) Object.assign(result, { seed, ...first })
  })
  // A bug that keeps the process from starting counts as not found; the search for the others goes on.
  await worker.done.catch((error: Error) => {
    result.what = error.message
  })
  return result
}

function learned(known: Seeds, results: readonly SearchResult[]): Seeds {
  const found = new Map(results.map(({ bug, seed }) => [bug.name, seed]))
  return Object.fromEntries(
    PLANTED_BUGS.flatMap(({ name }) => {
      const seed = found.has(name) ? found.get(name) : known[name]
      return typeof seed === 'number' ? [[name, seed]] : []
    }),
  )
}

function row({ bug, seed, invariant, what }: SearchResult): string {
  const found = seed === null ? `**not found** ${what}` : `${invariant}: ${what.slice(0, 80)}`
  return `| ${bug.name} | ${bug.wrong} | ${seed ?? '–'} | ${found.replaceAll('|', '/')} |`
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

process.exitCode = await main()
