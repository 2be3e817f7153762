import { readFileSync, writeFileSync } from 'node:fs'

const FILE = new URL('./seeds.json', import.meta.url)

/** By planted bug, the seed that found it when last searched for: the likeliest to find it again, and no more than that. */
export type MutantSeeds = Record<string, number>

export function readMutantSeeds(): MutantSeeds {
  return JSON.parse(readFileSync(FILE, 'utf8')) as MutantSeeds
}

export function writeMutantSeeds(seeds: MutantSeeds): void {
  writeFileSync(FILE, `${JSON.stringify(seeds, null, 2)}\n`)
}
