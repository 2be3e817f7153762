import { readFileSync } from 'node:fs'
import type { Mutant } from './planted-bugs.ts'

/** What of a planted bug no longer fits the source; an edit fits when its text is there exactly once. */
export function misfits({ name, edits }: Mutant): string[] {
  return edits.flatMap(({ file, find }) => {
    const text = readFileSync(new URL(`../../../${file}`, import.meta.url), 'utf8')
    const times = text.split(find).length - 1
    return times === 1 ? [] : [`${name}: in ${file} there is ${times} times ${JSON.stringify(find)}`]
  })
}
