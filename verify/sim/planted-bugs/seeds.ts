import { readFileSync, writeFileSync } from 'node:fs'

const FILE = new URL('./seeds.json', import.meta.url)

/** For each planted bug the seed that found it in the last `--search`. It is tried first, because it most likely finds it again. */
export type Seeds = Record<string, number>

export function readSeeds(): Seeds {
  return JSON.parse(readFileSync(FILE, 'utf8')) as Seeds
}

export function writeSeeds(seeds: Seeds): void {
  writeFileSync(FILE, `${JSON.stringify(seeds, null, 2)}\n`)
}
