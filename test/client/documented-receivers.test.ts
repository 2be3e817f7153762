import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { connect } from 'node:net'
import { join } from 'node:path'
import { after, describe, test } from 'node:test'
import { Webhook } from 'standardwebhooks'
import { findProgram } from '../support/binaries.ts'
import { repositoryPath, writeCodeOf } from '../support/doc-code.ts'
import { closeFetchConnections } from '../support/fetch-connections.ts'
import { freePort } from '../support/server-process.ts'
import { isCi } from '../support/services.ts'
import { until } from '../support/until.ts'

const PAGE = 'docs/receiving-webhooks.md'
const CLIENT = repositoryPath('client/src/webhooks/index.ts')
const SECRETS = [0, 1].map(() => `whsec_${randomBytes(32).toString('base64')}`)
const folder = writeCodeOf(PAGE, (code) => code.replace('@project-api/client/webhooks', CLIENT))

const python = findProgram('python3')
const RECEIVERS = {
  Node: { program: process.execPath, args: [join(folder, 'receiver.js')] },
  Python: { program: python, args: [join(folder, 'receiver.py')] },
}

describe('the receivers in the documentation', () => {
  after(closeFetchConnections)

  for (const [language, { program, args }] of Object.entries(RECEIVERS)) {
    const skip = program === undefined && !isCi() && `needs ${language}, which is not installed`
    test(`the receiver in ${language} takes an event once, with either secret, refuses a forged one and survives an aborted one`, {
      skip,
    }, async (t) => {
      const port = await freePort()
      const env = { ...process.env, PORT: String(port), WEBHOOK_SECRETS: SECRETS.join(' ') }
      const child = spawn(program ?? '', args, { env, stdio: ['ignore', 'pipe', 'ignore'] })
      t.after(() => stop(child))
      let printed = ''
      child.stdout.on('data', (text) => {
        printed += text
      })
      const url = `http://127.0.0.1:${port}`
      await until(() =>
        fetch(url, { method: 'PUT' }).then(
          () => true,
          () => false,
        ),
      )
      await abortUpload(port)
      const [first = '', second = ''] = SECRETS
      assert.equal(await send(url, { id: '1', secret: first }), 204)
      assert.equal(await send(url, { id: '1', secret: first }), 204)
      assert.equal(await send(url, { id: '2', secret: second }), 204)
      assert.equal(await send(url, { id: '3', secret: `whsec_${randomBytes(32).toString('base64')}` }), 401)
      assert.equal(await send(url, { id: '4', secret: first, agoMs: 600_000 }), 401)
      // An event without a job.
      assert.equal(
        await send(url, { id: '5', secret: first, type: 'webhook.test', data: { endpoint_id: 'whe_1' } }),
        204,
      )
      await until(() => printed.split('\n').length === 4)
      const [one, two, three] = printed.replaceAll('\r', '').split('\n')
      assert.deepEqual([one, two], ['job.completed job_1', 'job.completed job_2'])
      assert.match(three ?? '', /^webhook\.test (?:undefined|None)$/)
    })
  }
})

/** Ends the connection in the middle of a body. Resolves once the receiver has ended it, too. */
async function abortUpload(port: number): Promise<void> {
  const socket = connect(port, '127.0.0.1')
  socket.on('error', () => {})
  socket.write('POST / HTTP/1.1\r\nhost: receiver\r\ncontent-length: 100\r\n\r\n{"id":')
  await once(socket, 'connect')
  // The receiver answers nothing before the end of the body.
  socket.end()
  socket.resume()
  await once(socket, 'close')
}

async function send(
  url: string,
  message: { id: string; secret: string; agoMs?: number; type?: string; data?: object },
): Promise<number> {
  const { id, secret, agoMs = 0, type = 'job.completed', data = { job_id: `job_${id}`, title: 'Größe' } } = message
  const body = JSON.stringify({ id, type, data })
  const at = new Date(Date.now() - agoMs)
  const headers = {
    'webhook-id': id,
    'webhook-timestamp': String(Math.floor(at.getTime() / 1_000)),
    'webhook-signature': new Webhook(secret).sign(id, at, body),
  }
  return (await fetch(url, { method: 'POST', headers, body })).status
}

function stop(child: ChildProcess): Promise<void> {
  return new Promise((resolve) => {
    if (child.exitCode !== null) return resolve()
    child.once('exit', () => resolve())
    child.kill('SIGKILL')
  })
}
