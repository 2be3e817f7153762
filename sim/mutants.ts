import { readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { MUTANTS, type Mutant } from './mutant-list.ts'
import { startWorker } from './worker-process.ts'

interface Hunt {
  mutant: Mutant
  /** How many seeds it took; null when it got away. */
  seeds: number | null
  invariant: string
  what: string
}

/**
 * `npm run sim:mutants` plants each bug in turn and plays seeds until one breaks an invariant; a bug that gets away fails
 * the run, and so does one whose text is no longer in the source. `--only A,B` hunts those, `--seeds N` sets the bound.
 */
async function main(): Promise<number> {
  const { values } = parseArgs({
    options: {
      seeds: { type: 'string', default: '1000' },
      only: { type: 'string' },
      workers: { type: 'string', default: String(availableParallelism()) },
    },
  })
  const chosen = MUTANTS.filter(({ name }) => values.only === undefined || values.only.split(',').includes(name))
  const faults = chosen.flatMap(misfits)
  for (const fault of faults) say(fault)
  if (faults.length > 0) return 1
  const waiting = [...chosen]
  const hunts: Hunt[] = []
  const hunter = async () => {
    for (let mutant = waiting.shift(); mutant; mutant = waiting.shift()) {
      const hunted = await hunt(mutant, Number(values.seeds))
      hunts.push(hunted)
      say(row(hunted))
    }
  }
  say('| planted bug | what it gets wrong | seeds | found by |\n|---|---|---|---|')
  await Promise.all(Array.from({ length: Number(values.workers) }, hunter))
  const found = hunts.filter(({ seeds }) => seeds !== null).length
  say(`${found}/${chosen.length}`)
  return found === chosen.length ? 0 : 1
}

/** An edit fits when its text is there exactly once. */
function misfits({ name, edits }: Mutant): string[] {
  return edits.flatMap(({ file, find }) => {
    const text = readFileSync(new URL(`../${file}`, import.meta.url), 'utf8')
    const times = text.split(find).length - 1
    return times === 1 ? [] : [`${name}: in ${file} there is ${times} times ${JSON.stringify(find)}`]
  })
}

async function hunt(mutant: Mutant, bound: number): Promise<Hunt> {
  const hunted: Hunt = { mutant, seeds: null, invariant: '', what: '' }
  const task = { first: 1, step: 1, end: bound + 1, untilFailure: true, mutant: mutant.name }
  await startWorker(task, ({ seed, violations }) => {
    const [first] = violations
    if (first) Object.assign(hunted, { seeds: seed, ...first })
  }).done
  return hunted
}

function row({ mutant, seeds, invariant, what }: Hunt): string {
  const found = seeds === null ? '**got away**' : `${invariant}: ${what.slice(0, 80)}`
  return `| ${mutant.name} | ${mutant.wrong} | ${seeds ?? '–'} | ${found.replaceAll('|', '/')} |`
}

function say(line: string): void {
  process.stdout.write(`${line}\n`)
}

process.exitCode = await main()
