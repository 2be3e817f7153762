import assert from 'node:assert/strict'
import { test } from 'node:test'
import { serve } from '../../src/cli/serve.ts'
import { ConfigError } from '../../src/config-reader.ts'

test('serve listens for SIGHUP before it reads its settings, because SIGHUP ends a process that does not listen', async () => {
  let listeners = 0
  const line = {
    env: { PORT: 'not a port' },
    args: [],
    print: () => {},
    printError: () => {},
    readFile: () => '{}',
    stopping: new AbortController().signal,
    onHangUp: () => {
      listeners += 1
    },
  }
  await assert.rejects(serve(line), ConfigError)
  assert.equal(listeners, 1)
})
