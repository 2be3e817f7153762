import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { startWorker } from '../worker-process.ts'
import { misfits } from './fit.ts'
import { MUTANTS, type Mutant } from './planted-bugs.ts'
import { readMutantSeeds, writeMutantSeeds } from './seeds.ts'

interface Hunt {
  mutant: Mutant
  /** The one that found it; null when it got away. */
  seed: number | null
  invariant: string
  what: string
}

/**
 * `npm run sim:mutants` plants each bug in turn and plays seeds until one breaks an invariant; a bug that gets away fails
 * the run, and so does one whose text is no longer in the source. The seed that found it last time goes first, then all
 * from 1 to `--seeds N`. `--search` goes through them all and remembers the first that finds each; `--only A,B` hunts those.
 */
async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      seeds: { type: 'string', default: '1000' },
      only: { type: 'string' },
      search: { type: 'boolean', default: false },
      workers: { type: 'string', default: String(availableParallelism()) },
    },
  })
  const chosen = MUTANTS.filter(({ name }) => values.only === undefined || values.only.split(',').includes(name))
  const faults = chosen.flatMap(misfits)
  for (const fault of faults) say(fault)
  if (faults.length > 0 || chosen.length === 0) return 1
  const startedMs = performance.now()
  const known = readMutantSeeds()
  const waiting = [...chosen]
  const hunts: Hunt[] = []
  const hunter = async () => {
    for (let mutant = waiting.shift(); mutant; mutant = waiting.shift()) {
      const hunted = await hunt(mutant, Number(values.seeds), values.search ? undefined : known[mutant.name])
      hunts.push(hunted)
      say(row(hunted))
    }
  }
  say('| planted bug | what it gets wrong | seed | found by |\n|---|---|---|---|')
  await Promise.all(Array.from({ length: Number(values.workers) }, hunter))
  if (values.search) writeMutantSeeds(learned(known, hunts))
  const found = hunts.filter(({ seed }) => seed !== null).length
  say(`${found}/${chosen.length} in ${((performance.now() - startedMs) / 1000).toFixed(0)} s`)
  return found === chosen.length ? 0 : 1
}

async function hunt(mutant: Mutant, bound: number, likely: number | undefined): Promise<Hunt> {
  const hunted: Hunt = { mutant, seed: null, invariant: '', what: '' }
  const task = { first: 1, step: 1, end: bound + 1, mutant: mutant.name, ...(likely === undefined ? {} : { likely }) }
  const worker = startWorker(task, ({ seed, violations }) => {
    const [first] = violations
    if (first) Object.assign(hunted, { seed, ...first })
  })
  // One that does not even start is a bug nobody has looked for, and no reason to leave the others in peace.
  await worker.done.catch((error: Error) => {
    hunted.what = error.message
  })
  return hunted
}

function learned(known: Record<string, number>, hunts: readonly Hunt[]): Record<string, number> {
  const found = new Map(hunts.map(({ mutant, seed }) => [mutant.name, seed]))
  return Object.fromEntries(
    MUTANTS.flatMap(({ name }) => {
      const seed = found.has(name) ? found.get(name) : known[name]
      return typeof seed === 'number' ? [[name, seed]] : []
    }),
  )
}

function row({ mutant, seed, invariant, what }: Hunt): string {
  const found = seed === null ? `**got away** ${what}` : `${invariant}: ${what.slice(0, 80)}`
  return `| ${mutant.name} | ${mutant.wrong} | ${seed ?? '–'} | ${found.replaceAll('|', '/')} |`
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

process.exitCode = await main()
