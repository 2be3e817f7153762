import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, before, describe, test } from 'node:test'
import { type JobWorld, startJobWorld, WEBHOOK_SECRET } from '../support/job-world.ts'
import { forEachService, onOneService } from '../support/service.ts'

/** Numbers that JavaScript cannot hold, or would write otherwise. */
const NUMBERS = [
  '9007199254740993',
  '-9007199254740993',
  '12345678901234567890',
  '1e400',
  '-1E+400',
  '1e-400',
  '-0',
  '-0.0',
  '0.1e-7',
  '1E5',
  '1.0',
  '1.50',
  '0.1000000000000000055',
  '3.14159265358979323846',
]
const ALL = `{ "numbers" : [${NUMBERS.join(' , ')}],\n"text":"\\u0041\\/ \\ud800 \\u0000", "a":{"b":-0} }`
/** Long enough to be bound as a value of its own. */
const LONG = `[${Array(20_000).fill('9007199254740993').join(', ')}]`
const DOCUMENTS = [ALL, ...NUMBERS]

/** In place of the runtime: keeps each start as it was sent, and answers with the test's own text as the run's state. */
function scriptedRuntime() {
  const script = { url: '', starts: [] as string[], state: (_runId: string) => '{}' }
  const server = createServer(async (request, response) => {
    let body = ''
    for await (const chunk of request.setEncoding('utf8')) body += chunk
    const [, , thread_id, what, path_run_id] = String(request.url).split(/[/?]/)
    const isStart = what === 'runs' && request.method === 'POST'
    if (isStart) script.starts.push(body)
    const run_id = path_run_id?.includes('-') ? path_run_id : runOf(String(thread_id), script.starts.length)
    const run = { thread_id, run_id, status: isStart ? 'pending' : 'success', metadata: {} }
    response.setHeader('content-type', 'application/json')
    if (what === 'state') response.end(script.state(lastRunOf.get(String(thread_id)) ?? ''))
    else response.end(what === 'runs' && !isStart && !path_run_id?.includes('-') ? '[]' : JSON.stringify(run))
  })
  before(async () => {
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    script.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  })
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  return script
}

const lastRunOf = new Map<string, string>()

function runOf(threadId: string, nth: number): string {
  const runId = `00000000-0000-4000-8000-${String(nth).padStart(12, '0')}`
  lastRunOf.set(threadId, runId)
  return runId
}

describe('documents are exact', () => {
  forEachService((under) => {
    const runtime = scriptedRuntime()
    const JSON_TYPE = { 'content-type': 'application/json' }
    let world: JobWorld

    before(async () => {
      world = await startJobWorld(under, { env: { RUNTIME_URL: runtime.url } })
    })

    const post = async (path: string, raw: string, headers: Record<string, string> = {}) => {
      const answer = await world.service.request('POST', path, {
        token: world.admin,
        raw,
        headers: { ...JSON_TYPE, ...headers },
      })
      await world.quiet()
      return answer
    }
    const textOf = async (path: string) => (await world.service.request('GET', path, { token: world.admin })).text
    const start = async (input = '{}', type = 'report') => {
      const answer = await post('/jobs', `{"type":"${type}","input":${input}}`)
      assert.equal(answer.status, 202, answer.text)
      const { id, thread_id } = answer.body as { id: string; thread_id: string }
      return { id, thread_id, text: answer.text }
    }
    const has = (text: string, part: string) =>
      assert.ok(text.includes(part), `${part.slice(0, 500)} is not in ${text.slice(0, 1_000)}`)

    test('an input reaches the runtime, the job and the list unchanged', async () => {
      for (const input of [...DOCUMENTS, LONG, '"a\\u0000"', 'null', '[]']) {
        const { id, text } = await start(input)
        has(text, `"input":${input},`)
        has(runtime.starts.at(-1) ?? '', `"input":${input},`)
        has(await textOf(`/jobs/${id}`), `"input":${input},`)
        has(await textOf('/jobs?limit=1'), `"input":${input},`)
      }
    })

    test('a repeated request gets the first answer byte for byte, and another number is another request', async () => {
      for (const [n, input] of [...DOCUMENTS, LONG].entries()) {
        const key = { 'idempotency-key': `exact-${n}` }
        const body = `{"type":"report","input":${input}}`
        const first = await post('/jobs', body, key)
        const again = await post('/jobs', ` { "input" :${input} , "type":"report"}`, key)
        assert.equal(again.headers['idempotency-replayed'], 'true', again.text)
        assert.equal(again.text, first.text)
        assert.equal(again.headers['content-type'], first.headers['content-type'])
        const other = await post('/jobs', body.replace(/\d(?=[^\d]*\}$)/, '4'), key)
        assert.equal(other.status, 422, other.text)
      }
    })

    test('the values of a callback reach the output and the list of callbacks as they came, also by replay', async () => {
      for (const output of [...DOCUMENTS, LONG, `{"__proto__":1,"constructor":{"prototype":${ALL}}}`]) {
        const { id, thread_id } = await start()
        const run_id = lastRunOf.get(thread_id)
        const ids = `"thread_id":"${thread_id}","run_id":"${run_id}","status":"success"`
        const raw = `{${ids}, "values":{"draft":1,"report":${output} } }`
        const answer = await world.callback('report', null, { raw })
        assert.equal(answer.body.outcome, 'applied', answer.text)
        has(await textOf(`/jobs/${id}`), `"output":${output},`)
        const list = await textOf(`/v1/callbacks?fields=body&job_id=${id}`)
        has(list, `"body":${raw}`)
        const callbackId = /"id":"(cbk_\w+)"/.exec(list)?.[1]
        const replayed = await post(`/v1/callbacks/${callbackId}/replay`, '')
        assert.equal(replayed.status, 200, replayed.text)
        has(await textOf(`/jobs/${id}`), `"output":${output},`)
      }
    })

    test('the state of a thread reaches the output unchanged', async () => {
      for (const output of [...DOCUMENTS, LONG]) {
        const { id } = await start()
        runtime.state = (runId) =>
          `{ "values":{"report" : ${output}}, "next":[], "tasks":[], "metadata":{"run_id":"${runId}"}}`
        has(await textOf(`/jobs/${id}`), `"output":${output},`)
      }
    })

    test('the questions of a graph are shown, and the answer is sent, as they came', async () => {
      for (const document of [...DOCUMENTS, LONG]) {
        const { id } = await start('{}', 'pausing')
        const question = `{ "id":"q1" , "value":${document}}`
        runtime.state = (runId) =>
          `{"values":{},"next":["ask"],"tasks":[{"id":"t","interrupts":[${question}]}],"metadata":{"run_id":"${runId}"}}`
        has(await textOf(`/jobs/${id}`), `"interrupts":[${question}]`)
        const resumed = await post(`/jobs/${id}/resume`, `{"input" : ${document} }`)
        assert.equal(resumed.status, 202, resumed.text)
        has(runtime.starts.at(-1) ?? '', document)
      }
    })

    test('the metadata of a project is shown as it came, alone, in a list and by replay', async () => {
      const metadata = ALL
      const key = { 'idempotency-key': randomUUID() }
      const created = await post('/v1/projects', `{"name":"x","metadata":${metadata}}`, key)
      assert.equal(created.status, 201, created.text)
      has(created.text, `"metadata":${metadata},`)
      assert.equal((await post('/v1/projects', `{"name":"x","metadata":${metadata}}`, key)).text, created.text)
      const path = String(created.headers.location)
      has(await textOf(path), `"metadata":${metadata},`)
      has(await textOf('/v1/projects?limit=1'), `"metadata":${metadata},`)
      const changed = await world.service.request('PATCH', path, {
        token: world.admin,
        raw: '{"metadata":{ "n":-0.0 }}',
        headers: JSON_TYPE,
      })
      has(changed.text, '"metadata":{ "n":-0.0 },')
    })

    test('a document must still be what the schema says', async () => {
      for (const metadata of ['[]', '"text"', '1e400', 'null', 'true']) {
        const refused = await post('/v1/projects', `{"name":"x","metadata":${metadata}}`)
        assert.equal(refused.status, 400)
        has(refused.text, 'body/metadata must be object')
      }
      const twice = await post('/v1/projects', '{"name":"x","metadata":{"a":1},"metadata":{"b":1e400}}')
      has(twice.text, '"metadata":{"b":1e400},')
      const many = await post('/jobs', `{"type":"report","input":1,"other":[${'{},'.repeat(100_000)}{}]}`)
      assert.equal(many.status, 400)
      has(many.text, 'body must not have more than 20000 values')
    })
  })
})

describe('a large callback', () => {
  onOneService((under) => {
    const MB = 1024 * 1024
    const documents = {
      'of empty objects': `[${'{},'.repeat((9.9 * MB) / 3)}{}]`,
      'of long numbers': `[${'9007199254740993,'.repeat((9.9 * MB) / 17)}0]`,
    }
    for (const [name, document] of Object.entries(documents)) {
      test(`${name} gives the event loop a turn again and again, and is stored as it came`, async () => {
        const world = await startJobWorld(under, { runtime: false })
        const ids = `"thread_id":"${randomUUID()}","run_id":"${randomUUID()}","status":"success"`
        let turns = 0
        const count = () => {
          turns += 1
          ticking = setImmediate(count)
        }
        let ticking = setImmediate(count)
        // Without a socket, whose reads would be turns too.
        const answer = await world.service.app.inject({
          method: 'POST',
          url: '/webhooks/jobs/report',
          headers: { 'x-webhook-secret': WEBHOOK_SECRET },
          payload: `{${ids},"values":{"report":${document}}}`,
        })
        clearImmediate(ticking)
        assert.equal(answer.statusCode, 200, answer.body)
        assert.ok(turns >= 35, `${turns} turns`)
        const { job_id } = answer.json<{ job_id: string }>()
        const read = await world.service.request('GET', `/jobs/${job_id}`, { token: world.admin })
        assert.ok(read.text.includes(`"output":${document},`))
      })
    }
  })
})
