import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { type AgentRuntime, startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { runCommand } from '../support/command.ts'
import { START_PATIENCE_MS } from '../support/patience.ts'
import { freshFolder, Program, type Settings } from '../support/program.ts'
import { type Served, settingsWith, sharedIssuer, startServe } from '../support/served.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'

const JOB_TYPES_FILE = fileURLToPath(new URL('../../job-types.json', import.meta.url))

type Entry = { action: string; object: { id: string }; actor: { kind: string } }

const tokenOf = async (sub: string, scopes: string[] = []) => (await sharedIssuer()).mint({ sub, scopes })

async function startReport(served: Served, sub: string): Promise<string> {
  const body = { type: 'report', input: { title: 'Done' } }
  const answer = await served.request<{ id: string }>('POST', '/jobs', { token: await tokenOf(sub), body })
  assert.equal(answer.status, 202, answer.text)
  return answer.body.id
}

async function untilCompleted(served: Served, id: string): Promise<void> {
  const token = await tokenOf('root', ['admin:*'])
  await until(async () => {
    return (await served.request<{ status: string }>('GET', `/jobs/${id}`, { token })).body.status === 'completed'
  })
}

describe('commands of operators', () => {
  let runtime: AgentRuntime
  before(async () => {
    runtime = await startAgentRuntime()
  })
  after(() => runtime.close())

  async function run(args: string[], settings: Settings): Promise<string> {
    const { code, output, errors } = await runCommand(args, settings)
    assert.deepEqual([code, errors], [0, ''], `${args.join(' ')}: ${errors}`)
    return output.trimEnd()
  }

  test('reconcile and replay are in the audit trail; users erase waits until it finishes', async () => {
    const folder = freshFolder()
    const settings = await settingsWith({
      DATA_DIR: folder,
      RUNTIME_URL: runtime.url,
      JOB_TYPES_FILE,
      WEBHOOK_SECRET: 'a-secret-of-the-runtime-1',
      PUBLIC_URL: 'http://127.0.0.1:9',
    })
    const served = await startServe({ folder, settings })
    const id = await startReport(served, 'ada')
    await untilCompleted(served, id)
    const token = await tokenOf('root', ['admin:*'])
    const { thread_id, run_id } = (
      await served.request<{ thread_id: string; run_id: string }>('GET', `/jobs/${id}`, { token })
    ).body
    const posted = await served.request('POST', '/webhooks/jobs/report', {
      headers: { 'x-webhook-secret': 'a-secret-of-the-runtime-1' },
      body: { thread_id, run_id, status: 'success', values: { report: 'Done' } },
    })
    assert.equal(posted.status, 200, posted.text)
    const callbacks = await served.request<{ data: { id: string }[] }>('GET', '/v1/callbacks', { token })
    const callback = callbacks.body.data[0]?.id ?? ''

    assert.match(await run(['jobs', 'reconcile', id], settings), new RegExp(`^${id}  completed  report  `))
    const checking = JSON.parse(await run(['jobs', 'reconcile', '--json'], settings)) as { id: string }
    assert.match(await run(['callbacks', 'replay', callback], settings), new RegExp(`^${callback}  duplicate  ${id}$`))
    const erased = JSON.parse(await run(['users', 'erase', 'ada', '--json'], settings)) as Record<string, unknown>
    assert.deepEqual([erased.sub, erased.state, erased.total, erased.done], ['ada', 'done', 2, 2])
    const job = JSON.parse(await run(['jobs', 'get', id, '--json'], settings)) as Record<string, unknown>
    assert.deepEqual([job.created_by, job.input, job.output], [null, null, null])
    const unknown = await runCommand(['users', 'erase', 'bob'], settings)
    assert.deepEqual([unknown.code, unknown.errors], [1, 'No such user\n'])
    const entries = (await run(['audit', '--json'], settings)).split('\n').map((line) => JSON.parse(line) as Entry)
    assert.deepEqual(
      entries.map(({ action, object, actor }) => [action, object.id, actor.kind]),
      [
        ['user.erased', 'ada', 'command_line'],
        ['user.erasure_started', 'ada', 'command_line'],
        ['callback.replayed', callback, 'command_line'],
        ['operation.started', checking.id, 'command_line'],
        ['job.checked', id, 'command_line'],
      ],
    )
  })

  test('jobs tail prints the events of all jobs until it is interrupted', needsPostgres(), async () => {
    const database = await sharedMigratedDatabase()
    const settings = await settingsWith({ DATABASE_URL: database.url, RUNTIME_URL: runtime.url, JOB_TYPES_FILE })
    const served = await startServe({ settings })
    const making = ['keys', 'create', '--name', 'tail', '--scopes', 'read:operations']
    const key = (await runCommand(making, settings)).output.trim()
    const ofService = { PROJECT_API_URL: served.url, PROJECT_API_KEY: key }
    const tails = [
      new Program(['jobs', 'tail'], { settings: ofService }),
      new Program(['jobs', 'tail', '--json', '--url', `${served.url}/`, '--key', key]),
    ]
    const [text, json] = tails as [Program, Program]
    // A tail begins with the next event, and does not say when it is ready.
    let id = ''
    let looks = 0
    await until(async () => {
      if (looks++ % 50 === 0) id = await startReport(served, 'ada')
      return tails.every(({ output }) => output.includes(`${id}`) && output.includes('job.created'))
    }, START_PATIENCE_MS)
    await untilCompleted(served, id)
    await text.untilSaid(new RegExp(`^20\\S+Z {2}${id} {2}job\\.completed {2}completed {2}\\w+$`, 'm'))
    await json.untilSaid(new RegExp(`"type":"job\\.completed","job_id":"${id}","status":"completed"`))
    for (const tail of tails) {
      tail.signal('SIGINT')
      const { code, errors } = await tail.untilEnded()
      assert.deepEqual([code, errors], [0, ''])
    }
    await served.program.kill()
    await database.drop()
  })
})
