import assert from 'node:assert/strict'
import { test } from 'node:test'
import { misfits } from '../../verify/sim/planted-bugs/fit.ts'
import { MUTANTS } from '../../verify/sim/planted-bugs/planted-bugs.ts'
import { readMutantSeeds } from '../../verify/sim/planted-bugs/seeds.ts'

test('every planted bug of the simulation still fits the source', () => {
  assert.deepEqual(MUTANTS.flatMap(misfits), [])
})

test('planted bugs have names of their own, and a seed is remembered for no other', () => {
  const names = new Set(MUTANTS.map(({ name }) => name))
  assert.equal(names.size, MUTANTS.length)
  assert.deepEqual(
    Object.keys(readMutantSeeds()).filter((name) => !names.has(name)),
    [],
  )
})
