import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { promisify } from 'node:util'
import { findProgram } from '../support/binaries.ts'
import { writeCodeOf } from '../support/doc-code.ts'
import { closeFetchConnections } from '../support/fetch-connections.ts'
import { startJobWorld } from '../support/job-world.ts'
import { overTime } from '../support/over-time.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { type ScriptedAnswer, startScriptedServer } from '../support/scripted-server.ts'
import { onOneService } from '../support/service.ts'
import { isCi } from '../support/services.ts'

const python = findProgram('python3') ?? ''
const skip = python === '' && !isCi() && 'needs Python, which is not installed'
const folder = writeCodeOf('docs/other-languages.md', (code) => code)
const run = promisify(execFile)
const options = (env: Record<string, string>) => ({
  cwd: folder,
  timeout: PATIENCE_MS,
  env: { ...process.env, ...env, PYTHONDONTWRITEBYTECODE: '1' },
})

/** Reads two events, without the reader's pauses. */
const TWO_EVENTS = `
import os, time, follow
time.sleep = lambda seconds: None
stream = follow.follow(os.environ["API"], lambda refresh: "fresh" if refresh else "old")
for _ in range(2):
    print(*next(stream)[:2])
`

const part = (id: number): ScriptedAnswer => {
  return (response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.end(`:\n\nid: ${id}\nevent: job.updated\ndata: {"n":${id}}\n\nid: ${id + 5}\n\n`)
  }
}

describe('the Python of the documentation', { skip }, () => {
  after(closeFetchConnections)

  onOneService((under) => {
    test('the documented program in Python starts a job and sees its end', async () => {
      const world = await startJobWorld(under)
      const running = run(
        python,
        [join(folder, 'first_job.py')],
        options({ API: world.service.url, ADA: world.token('ada') }),
      )
      const { stdout } = await overTime(world, running)
      assert.match(stdout, /^completed \{.*"title": "Sales"/)
    })
  })

  test('the documented reader in Python resumes at the last id and fetches a new token after a 401', async () => {
    const server = await startScriptedServer({ status: 401, body: {} }, part(1), { status: 503, body: {} }, part(8))
    const { stdout } = await run(python, ['-c', TWO_EVENTS], options({ API: server.url }))
    assert.deepEqual(stdout.trim().split(/\r?\n/), ['1 job.updated', '8 job.updated'])
    assert.deepEqual(
      server.requests.map(({ headers }) => [headers.authorization, headers['last-event-id'] ?? null]),
      [
        ['Bearer old', null],
        ['Bearer fresh', null],
        ['Bearer old', '6'],
        ['Bearer old', '6'],
      ],
    )
  })

  test('the documented reader in Python stops at a status that a retry would not change', async () => {
    const server = await startScriptedServer({ status: 403, body: {} })
    await assert.rejects(run(python, ['-c', TWO_EVENTS], options({ API: server.url })), /HTTP Error 403/)
    assert.equal(server.requests.length, 1)
  })
})
