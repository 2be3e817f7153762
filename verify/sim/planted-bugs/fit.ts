import { existsSync, readFileSync } from 'node:fs'
import type { Edit, PlantedBug } from './planted-bugs.ts'

const ROOT = new URL('../../../', import.meta.url)

/** One report per edit of a planted bug that no longer applies. An edit applies when its text is in its file exactly once. */
export function misfits({ name, edits }: PlantedBug): string[] {
  return edits.flatMap(({ file, find }) => {
    const problem = problemOf(file, find)
    if (problem === null) return []
    return `The planted bug ${name} no longer applies to ${file}: ${problem}
  What to do: change \`file\` and \`find\` of ${name} in verify/sim/planted-bugs/planted-bugs.ts so that it plants the same
  fault in the code as it is now. Then run: npm run sim:mutants -- --only ${name}`
  })
}

function problemOf(file: Edit['file'], find: string): string | null {
  if (!existsSync(new URL(file, ROOT))) return `there is no such file.\n  It looked for:  ${quote(find)}`
  const text = readFileSync(new URL(file, ROOT), 'utf8')
  const times = text.split(find).length - 1
  if (times === 1) return null
  const { line, number } = nearestLine(text, find)
  return `its text is there ${times} times, and must be there once.
  It looked for:  ${quote(find)}
  Nearest line:   ${quote(line)} (line ${number})`
}

/** The line of the file that is most similar to a line of the expected text. */
function nearestLine(text: string, find: string): { line: string; number: number } {
  const wanted = find.split('\n').map(pairsIn)
  const scored = text.split('\n').map((line, index) => {
    const pairs = pairsIn(line)
    return { line: line.trim(), number: index + 1, score: Math.max(...wanted.map((one) => similarity(one, pairs))) }
  })
  return scored.reduce((best, one) => (one.score > best.score ? one : best))
}

function pairsIn(line: string): Set<string> {
  const letters = line.trim()
  return new Set(Array.from(letters, (_, at) => letters.slice(at, at + 2)))
}

/** From 0 (nothing in common) to 1 (the same pairs of letters). */
function similarity(a: ReadonlySet<string>, b: ReadonlySet<string>): number {
  return (2 * a.intersection(b).size) / Math.max(1, a.size + b.size)
}

function quote(text: string): string {
  return JSON.stringify(text)
}
