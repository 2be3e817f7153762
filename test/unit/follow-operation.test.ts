import assert from 'node:assert/strict'
import { test } from 'node:test'
import { followOperation } from '../../src/cli/client/follow-operation.ts'
import type { CommandLine } from '../../src/cli/io.ts'
import type { BulkOperation } from '../../src/operations/operation-schema.ts'

test('a command that waits for an operation prints every item that failed, also those that the operation does not show', async () => {
  const all = Array.from({ length: 3 }, (_, n) => ({ id: `thread-${n}`, error: 'It stays' }))
  const operation = {
    id: 'opr_1',
    finished_at: '2026-01-31T12:00:00.000Z',
    failed: 3,
    failures: all.slice(0, 1),
  } as unknown as BulkOperation
  const printed: string[] = []
  const line = { print: (text: string) => printed.push(text), stopping: new AbortController().signal }
  const reads = {
    read: () => Promise.resolve(operation),
    readFailures: async function* () {
      yield* all
    },
  }
  await followOperation(line as unknown as CommandLine, operation, { ...reads, show: () => 'done' })
  assert.deepEqual(printed, ['done', ...all.map(({ id, error }) => `${id}  ${error}`)])
  await followOperation(line as unknown as CommandLine, operation, { ...reads, show: null })
  assert.deepEqual((JSON.parse(printed.at(-1) ?? '') as BulkOperation).failures, all)
})
