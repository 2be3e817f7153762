import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { startAgentRuntime } from '../../src/sandbox/agent-runtime/agent-runtime.ts'
import { SANDBOX_USERS } from '../../src/sandbox/identity-provider/users.ts'
import { startLangGraph } from '../support/langgraph.ts'
import { freshFolder } from '../support/program.ts'
import { type Served, sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'
import { until } from '../support/until.ts'

interface World {
  url: string
  /** Kills the runtime with all its runs, and starts it again. */
  die(): Promise<void>
  stop(): Promise<void>
}

interface Job {
  id: string
  status: string
  output: unknown
  error: { code: string; message: string } | null
  interrupts: unknown
  settled_by: string | null
  thread_id: string
  run_id: string | null
}

const WORLDS: { name: string; start: () => Promise<World> }[] = [
  {
    name: 'the real runtime',
    start: async () => {
      const server = await startLangGraph()
      const die = async () => {
        await server.kill()
        await server.restart()
      }
      return { url: server.url, die, stop: () => server.stop() }
    },
  },
  {
    name: 'the sandbox runtime',
    start: async () => {
      const runtime = await startAgentRuntime()
      runtime.setFaults({ pending_ms: 200, running_ms: 50 })
      return { url: runtime.url, die: async () => runtime.crash(), stop: () => runtime.close() }
    },
  },
]

const reportFrom = (assistant_id: string, more = {}) => ({ assistant_id, output_key: 'report', ...more })
const LANGUAGE = { type: 'object', properties: { language: { type: 'string' } }, additionalProperties: false }
const TYPES = {
  types: {
    report: reportFrom('report'),
    summary: { assistant_id: 'summary', output_key: '/result/summary' },
    throw: reportFrom('throw'),
    pause: reportFrom('pause', { may_pause: true }),
    late_key: reportFrom('late_key', { may_pause: true }),
    sleep: reportFrom('sleep'),
    hurry: reportFrom('sleep', { deadline_seconds: 1 }),
    unknown: reportFrom('no-such-assistant'),
    whoami: reportFrom('whoami', { configurable_schema: LANGUAGE }),
    whoami_asked: reportFrom('whoami_asked', { configurable_schema: LANGUAGE }),
  },
}
const INPUT = { title: 'Done', n: 42 }
const REPORT = { title: 'Done', n: 42 }

for (const { name, start } of WORLDS) {
  describe(`jobs on ${name}`, () => {
    let world: World
    /** A service that receives the runtime's callbacks. */
    let hearing: Served
    /** A service whose callback address has no listener. */
    let deaf: Served
    let token: string

    before(async () => {
      world = await start()
      token = (await sharedIssuer()).mint({ user: 'ada' })
      const [port, nowhere] = [await freePort(), await freePort()]
      hearing = await serve(world.url, { port, publicPort: port })
      deaf = await serve(world.url, { port: 0, publicPort: nowhere })
    })
    after(() => world.stop())

    const post = async (service: Served, path: string, body: object = {}) => {
      const { status, body: job } = await service.request<Job>('POST', path, { token, body })
      assert.ok(status === 200 || status === 202, JSON.stringify(job))
      return job
    }
    const begin = (service: Served, type: string, input: object = INPUT) => post(service, '/jobs', { type, input })
    const read = async (service: Served, { id }: Job) =>
      (await service.request<Job>('GET', `/jobs/${id}`, { token })).body
    /** The job as the list shows it. */
    const glance = async (service: Served, { id }: Job) => {
      const { body } = await service.request<{ data: Job[] }>('GET', '/jobs?limit=100', { token })
      return body.data.find((job) => job.id === id)
    }
    const untilGlance = async (service: Served, job: Job, holds: (job: Job) => boolean): Promise<Job> => {
      let seen: Job | undefined
      await until(async () => {
        seen = await glance(service, job)
        return seen !== undefined && holds(seen)
      })
      return seen as Job
    }
    /** Waits for the stored end, which the timeline shows. A read of the job or of a list would ask the runtime. */
    const untilStored = async (service: Served, job: Job): Promise<Job> => {
      await until(async () => {
        const { body } = await service.request<{ data: { detail: { to?: string } }[] }>(
          'GET',
          `/jobs/${job.id}/timeline`,
          { token },
        )
        return body.data.some(({ detail }) => detail.to === 'completed')
      })
      return read(service, job)
    }
    const ended = ({ status }: Job) => ['completed', 'failed', 'cancelled', 'awaiting_input'].includes(status)

    test('a run that succeeds is settled by its callback', async () => {
      const job = await untilStored(hearing, await begin(hearing, 'report'))
      assert.deepEqual([job.status, job.output, job.settled_by], ['completed', REPORT, 'callback'])
    })

    test('a JSON Pointer finds a nested output', async () => {
      const job = await untilGlance(hearing, await begin(hearing, 'summary', { prompt: 'much' }), ended)
      assert.deepEqual([job.status, job.output], ['completed', 'In short: much'])
    })

    test('the output of an agent is its last message, and its tokens are counted', async () => {
      const tokens = async () => {
        const { body } = await hearing.request<{ by_type: { type: string; tokens: { total: number } }[] }>(
          'GET',
          '/v1/usage',
          { token },
        )
        return body.by_type.find((part) => part.type === 'agent')?.tokens.total ?? 0
      }
      const before = await tokens()
      const job = await untilStored(hearing, await begin(hearing, 'agent', { prompt: 'hi' }))
      assert.deepEqual([job.status, job.output, job.settled_by], ['completed', 'You said: hi', 'callback'])
      assert.ok((await tokens()) > before)
    })

    for (const name of ['heard', 'lost'] as const) {
      test(`each turn of a conversation has its own output and tokens, with its callbacks ${name}`, async () => {
        const service = name === 'heard' ? hearing : deaf
        const tokens = async () => {
          const { body } = await service.request<{ by_type: { type: string; tokens: { total: number } }[] }>(
            'GET',
            '/v1/usage',
            { token },
          )
          return body.by_type.find((part) => part.type === 'agent')?.tokens.total ?? 0
        }
        const counts: number[] = []
        let before: Job | undefined
        for (const content of ['one', 'two', 'three']) {
          const sum = await tokens()
          const continues = before === undefined ? {} : { continues: before.id }
          const input = { messages: [{ role: 'user', content }] }
          const turn = await post(service, '/jobs', { type: 'agent', input, ...continues })
          const job = await untilGlance(service, turn, ended)
          assert.deepEqual([job.status, job.output], ['completed', `You said: ${content}`])
          if (before !== undefined) assert.equal(job.thread_id, before.thread_id)
          counts.push((await tokens()) - sum)
          before = job
        }
        assert.ok((counts[0] ?? 0) > 0)
        assert.equal(new Set(counts).size, 1, `each turn costs the same: ${counts}`)
      })
    }

    test('if the callback is lost, a read settles the job with the same output', async () => {
      const started = await begin(deaf, 'report')
      let job = started
      await until(async () => {
        job = await read(deaf, started)
        return ended(job)
      })
      assert.deepEqual([job.status, job.output, job.settled_by], ['completed', REPORT, 'read'])
    })

    test('if the callback is lost and no client reads the job, the sweep settles it', async () => {
      const started = await begin(deaf, 'report')
      const job = await untilStored(deaf, started)
      assert.deepEqual([job.status, job.output, job.settled_by], ['completed', REPORT, 'sweep'])
    })

    test('an error has the same text in the callback and in the state', async () => {
      const heard = await untilGlance(hearing, await begin(hearing, 'throw'), ended)
      const asked = await untilGlance(deaf, await begin(deaf, 'throw'), ended)
      for (const job of [heard, asked]) {
        assert.deepEqual([job.status, job.error], ['failed', { code: 'run_failed', message: 'kaboom: upstream 500' }])
      }
    })

    test('an unknown assistant fails the job, with the reason', async () => {
      const job = await untilGlance(hearing, await begin(hearing, 'unknown'), ended)
      assert.deepEqual([job.status, job.error?.code], ['failed', 'start_rejected'])
    })

    for (const type of ['pause', 'late_key']) {
      test(`a graph that pauses (${type}) awaits input, and continues with the answer`, async () => {
        const paused = await untilGlance(hearing, await begin(hearing, type), ended)
        assert.equal(paused.status, 'awaiting_input')
        assert.match(JSON.stringify(paused.interrupts), /Publish it\?/)
        await post(hearing, `/jobs/${paused.id}/resume`, { input: 'yes' })
        const job = await untilGlance(hearing, paused, (now) => now.status === 'completed')
        assert.match(JSON.stringify(job.output), /Done/)
        assert.notEqual(job.run_id, paused.run_id)
      })
    }

    /** Another client calls the runtime, without the service. */
    const elsewhere = async (path: string, body: object) => {
      const headers = { 'content-type': 'application/json' }
      const answer = await fetch(`${world.url}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
      assert.equal(answer.status, 200, await answer.clone().text())
      return (await answer.json()) as { run_id: string }
    }

    test('a question that another client answers at the runtime: the job goes on with that run', async () => {
      const paused = await untilGlance(hearing, await begin(hearing, 'pause'), ended)
      assert.equal(paused.status, 'awaiting_input')
      const answer = { assistant_id: 'pause', command: { resume: 'from elsewhere' } }
      const { run_id } = await elsewhere(`/threads/${paused.thread_id}/runs`, answer)
      await until(async () => (await post(hearing, `/jobs/${paused.id}/check`)).run_id === run_id)
      const job = await untilGlance(hearing, paused, (now) => now.status === 'completed')
      assert.deepEqual([job.run_id, job.output], [run_id, { title: 'Done', answer: 'from elsewhere' }])
    })

    test('a thread that another client changes without a run: the job can be resumed with null', async () => {
      const paused = await untilGlance(hearing, await begin(hearing, 'pause'), ended)
      await elsewhere(`/threads/${paused.thread_id}/state`, { values: { draft: 'by hand' }, as_node: 'ask' })
      const isEmpty = ({ interrupts }: Job) => Array.isArray(interrupts) && interrupts.length === 0
      await until(async () => isEmpty(await post(hearing, `/jobs/${paused.id}/check`)))
      await post(hearing, `/jobs/${paused.id}/resume`, { input: null })
      const job = await untilGlance(hearing, paused, (now) => now.status === 'completed')
      assert.deepEqual(job.output, { title: 'Done', answer: 'by hand' })
    })

    const FORGED = { user_id: 'eve', kind: 'user', scopes: ['admin:*'] }
    const { sub: ada = '', scopes = [] } = SANDBOX_USERS.find(({ username }) => username === 'ada') ?? {}
    const callerOf = ({ id }: Job, type: string, asked: object = { scopes, actor: null }) => {
      const caller = { user_id: ada, kind: 'user', job_id: id, type, project_id: null, ...asked }
      return { caller, user_id: ada }
    }

    test('a graph answers with the caller it saw, on start, resume, retry and the next turn, and forging changes nothing', async () => {
      const configurable = { language: 'de' }
      const input = { ...INPUT, caller: FORGED, user_id: 'eve', config: { configurable: { caller: FORGED } } }
      const paused = await untilGlance(
        hearing,
        await post(hearing, '/jobs', { type: 'whoami_asked', input, configurable }),
        ended,
      )
      await post(hearing, `/jobs/${paused.id}/resume`, { input: 'yes' })
      const first = await untilGlance(hearing, paused, (now) => now.status === 'completed')
      assert.deepEqual(first.output, { ...callerOf(first, 'whoami_asked'), language: 'de' })

      const admin = (await sharedIssuer()).mint({ sub: 'root', scopes: ['admin:*'] })
      const { body: retried } = await hearing.request<Job>('POST', `/jobs/${first.id}/retry`, { token: admin })
      const asked = await untilGlance(hearing, retried, ended)
      const { status } = await hearing.request('POST', `/jobs/${asked.id}/resume`, {
        token: admin,
        body: { input: 'no' },
      })
      assert.equal(status, 202)
      const again = await untilGlance(hearing, asked, (now) => now.status === 'completed')
      assert.deepEqual(again.output, {
        ...callerOf(again, 'whoami_asked', { scopes: [], actor: 'root' }),
        language: 'de',
      })

      // Another client leaves its own configuration on the thread, which the runtime keeps.
      const run = { assistant_id: 'whoami', input: {}, config: { configurable: { caller: FORGED, user_id: 'eve' } } }
      const { run_id } = await elsewhere(`/threads/${first.thread_id}/runs`, run)
      await until(async () => {
        const answer = await fetch(`${world.url}/threads/${first.thread_id}/runs/${run_id}`)
        return ((await answer.json()) as { status: string }).status === 'success'
      })
      const turn = await post(hearing, '/jobs', { type: 'whoami_asked', input, continues: first.id })
      const next = await untilGlance(hearing, turn, ended)
      await post(hearing, `/jobs/${next.id}/resume`, { input: 'yes' })
      const last = await untilGlance(hearing, next, (now) => now.status === 'completed')
      assert.deepEqual(last.output, { ...callerOf(last, 'whoami_asked'), language: 'de' })

      for (const forged of [{ configurable: { caller: FORGED } }, { metadata: { owner: 'eve' } }]) {
        const body = { type: 'whoami', input: INPUT, ...forged }
        assert.equal((await hearing.request('POST', '/jobs', { token, body })).status, 400)
      }
    })

    test('on a thread that another user began at the runtime, the graph sees the user of the job', async () => {
      const config = { configurable: { caller: FORGED, user_id: 'eve' } }
      const { thread_id } = (await elsewhere('/threads', { metadata: { owner: 'eve' } })) as unknown as Job
      const began = { assistant_id: 'whoami', input: {}, metadata: { user_id: ada }, config }
      const { run_id } = await elsewhere(`/threads/${thread_id}/runs`, began)
      const followed = await post(hearing, '/jobs', { type: 'whoami', thread_id, run_id })
      const first = await untilGlance(hearing, followed, ended)
      assert.deepEqual(first.output, { caller: FORGED, user_id: 'eve', language: null })
      const turn = await post(hearing, '/jobs', { type: 'whoami', input: INPUT, continues: first.id })
      const next = await untilGlance(hearing, turn, ended)
      assert.deepEqual(next.output, { ...callerOf(next, 'whoami'), language: null })
    })

    test('a running run can be cancelled', async () => {
      const started = await begin(hearing, 'sleep', { ms: 60_000, ...sandbox(60_000) })
      await until(async () => (await read(hearing, started)).status === 'generating')
      await post(hearing, `/jobs/${started.id}/cancel`)
      const job = await untilGlance(hearing, started, ended)
      assert.equal(job.status, 'cancelled')
    })

    test('a queued run can be cancelled, although the runtime then sends no callback', async () => {
      // More runs than the runtime executes at once, so that the last one is queued.
      const busy = await Promise.all(
        Array.from({ length: 12 }, () => begin(hearing, 'sleep', { ms: 60_000, ...sandbox(60_000) })),
      )
      const last = await begin(hearing, 'sleep', { ms: 60_000, ...sandbox(60_000) })
      await until(async () => (await glance(hearing, last))?.run_id !== null)
      for (const job of [last, ...busy]) await post(hearing, `/jobs/${job.id}/cancel`)
      for (const job of [last, ...busy]) {
        assert.equal((await untilGlance(hearing, job, ended)).status, 'cancelled')
      }
    })

    test('a run that outlives its deadline fails its job', async () => {
      const job = await untilGlance(hearing, await begin(hearing, 'hurry', { ms: 60_000, ...sandbox(60_000) }), ended)
      assert.deepEqual([job.status, job.error?.code], ['failed', 'deadline_exceeded'])
    })

    test('if the runtime dies with the run, the job fails at its deadline', async () => {
      let started: Job | undefined
      // On a slow machine, the deadline may be over before the run is started. Then another job is.
      for (let left = 3; left > 0 && !started?.run_id; left--) {
        const begun = await begin(hearing, 'hurry', { ms: 60_000, ...sandbox(60_000) })
        started = await untilGlance(hearing, begun, (job) => job.run_id !== null || ended(job))
      }
      assert.ok(started?.run_id)
      await world.die()
      const job = await untilGlance(hearing, started, ended)
      assert.equal(job.status, 'failed')
      assert.ok(['deadline_exceeded', 'run_lost'].includes(job.error?.code ?? ''), job.error?.code)
    })
  })
}

/** The sandbox reads the duration from here, the real graph from `ms`. */
function sandbox(durationMs: number) {
  return { sandbox: { duration_ms: durationMs } }
}

async function serve(runtimeUrl: string, ports: { port: number; publicPort: number }): Promise<Served> {
  const folder = freshFolder()
  writeFileSync(join(folder, 'job-types.json'), JSON.stringify(TYPES))
  return startServe({
    folder,
    settings: {
      RUNTIME_URL: runtimeUrl,
      WEBHOOK_SECRET: 'a secret of this test',
      PORT: String(ports.port),
      PUBLIC_URL: `http://127.0.0.1:${ports.publicPort}`,
      RATE_LIMIT_AUTHENTICATED: '1000000',
    },
  })
}
