import assert from 'node:assert/strict'
import { test } from 'node:test'
import { misfits } from '../../verify/sim/planted-bugs/fit.ts'
import { PLANTED_BUGS } from '../../verify/sim/planted-bugs/planted-bugs.ts'
import { readSeeds } from '../../verify/sim/planted-bugs/seeds.ts'

test('every planted bug of the simulation applies to the source', () => {
  const reports = PLANTED_BUGS.flatMap(misfits)
  assert.equal(reports.length, 0, reports.join('\n\n'))
})

test('planted bugs have names of their own, and a seed is remembered for no other', () => {
  const names = new Set(PLANTED_BUGS.map(({ name }) => name))
  assert.equal(names.size, PLANTED_BUGS.length)
  assert.deepEqual(
    Object.keys(readSeeds()).filter((name) => !names.has(name)),
    [],
  )
})

test('a planted bug that no longer applies names its file, its text, the nearest line and what to do', () => {
  const file = 'src/core/bounded-map.ts'
  const misfit = (find: string, inFile = file) =>
    misfits({ name: 'a-bug', wrong: 'nothing', edits: [{ file: inFile, find, put: '' }] })
  const unique = 'if (this.#entries.size <= this.#capacity) return'
  assert.deepEqual(misfit(unique), [])

  const [changed = '', ...more] = misfit(unique.replace('<=', '<'))
  assert.equal(more.length, 0)
  assert.match(changed, /^The planted bug a-bug no longer applies to src\/core\/bounded-map\.ts: .* 0 times/)
  assert.ok(changed.includes(`It looked for:  "${unique.replace('<=', '<')}"`))
  assert.match(changed, /Nearest line: {3}"if \(this\.#entries\.size <= this\.#capacity\) return" \(line \d+\)/)
  assert.match(changed, /change `file` and `find` of a-bug in verify\/sim\/planted-bugs\/planted-bugs\.ts/)
  assert.match(changed, /npm run sim:mutants -- --only a-bug$/)

  assert.match(misfit('this.#entries.delete(key)')[0] ?? '', /its text is there \d+ times, and must be there once/)
  assert.match(misfit('anything', 'src/gone.ts')[0] ?? '', /no longer applies to src\/gone\.ts: there is no such file/)
})
