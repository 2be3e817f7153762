import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { sql } from '../../src/db/sql.ts'
import type { TimelineEntry } from '../../src/jobs/api/job-schema.ts'
import { toJobTypes } from '../../src/jobs/job-types.ts'
import { assertError } from '../support/assert-error.ts'
import { type JobWorld, RUN_MS, START_RUN, sharedJobWorld, startJobWorld } from '../support/job-world.ts'
import { MetricsText } from '../support/metrics-text.ts'
import { type OpenapiDocument, validatorsOf } from '../support/openapi-document.ts'
import { forEachService, onOneService } from '../support/service.ts'

const INPUT = {
  type: 'object',
  required: ['title'],
  properties: { title: { type: 'string' }, n: { type: 'number' }, parts: { $ref: '#/$defs/the%20parts' } },
  $defs: { 'the parts': { type: 'array', items: { $ref: '#/$defs/the%20parts' } } },
  examples: [{ title: 'Sales' }],
}
const OUTPUT = {
  type: 'object',
  required: ['title', 'n'],
  properties: { title: { type: 'string' }, n: { type: 'integer' } },
}
/** A document of nested fields `a` takes this schema twice the time for each level. */
const HALF = { type: 'object', properties: { a: { $ref: '#/$defs/half' } }, required: ['a'] }
const DOUBLING = { $ref: '#/$defs/half', $defs: { half: { oneOf: [HALF, HALF] } } }
const SLOW_DOCUMENT = `${'{"a":'.repeat(40)}1${'}'.repeat(40)}`
const report = { assistant_id: 'report', output_key: 'report', may_pause: false }
const JOB_TYPES = toJobTypes({
  report: { ...report, input_schema: INPUT, output_schema: OUTPUT },
  chosen: { ...report, configurable_schema: { properties: { n: { type: 'integer' } }, additionalProperties: false } },
  // The same graph without a schema of its input, so that its output can be wrong.
  loose: { ...report, output_schema: OUTPUT },
  // The graph leaves its input among its values.
  optional: { ...report, output_key: 'note', output_schema: { type: ['object', 'null'] } },
  needed: { ...report, output_key: 'note', output_schema: { type: 'object' } },
  pausing: { assistant_id: 'pause', output_key: 'report', resume_schema: { type: 'object', required: ['ok'] } },
  both: { assistant_id: 'ask_both', output_key: 'report', resume_schema: { type: 'boolean' } },
  slow: { ...report, input_schema: DOUBLING, output_schema: DOUBLING, resume_schema: DOUBLING },
  stopping: { assistant_id: 'breakpoint', output_key: 'report', resume_schema: { type: 'boolean' } },
})
const invalid = (message: string) => ({ status: 400, code: 'invalid_request', message }) as const

describe('a job type with schemas', () => {
  onOneService((under) => {
    const shared = sharedJobWorld(under, { jobTypes: JOB_TYPES, env: { METRICS_PUBLIC: 'true' } })
    const post = (world: JobWorld, input: string) => {
      const headers = { 'content-type': 'application/json' }
      return world.request('POST', '/jobs', 'ada', { headers, raw: `{"type":"report","input":${input}}` })
    }
    const pause = async (type: string) => {
      const world = await shared()
      const { id } = await world.start(type, { sub: `user-${randomUUID()}` })
      // A breakpoint counts only when it is seen twice.
      await world.sweepUntil(async () => (await world.stored(id)).status === 'awaiting_input')
      const job = await world.stored(id)
      const resume = (body: object) => world.resume(job, body)
      return { world, job, resume, ids: (job.interrupts as { id: string }[]).map((question) => question.id) }
    }
    const timelineOf = async (world: JobWorld, id: string) => {
      const answer = await world.service.request<{ data: TimelineEntry[] }>('GET', `/jobs/${id}/timeline`, {
        token: world.admin,
      })
      return answer.body.data
    }

    test('a bad input is refused with its place, before a job or a run is made', async () => {
      const world = await shared()
      const [runs, { body: before }] = [world.calls(START_RUN), await world.request<object>('GET', '/jobs', 'ada')]
      assertError(world.service, await post(world, '{"title":7}'), invalid('body/input/title must be string'))
      assertError(world.service, await post(world, '{}'), invalid('body/input must have the field "title"'))
      assertError(world.service, await post(world, 'null'), invalid('body/input must be object'))
      const nested = '{"title":"x","parts":[[[]],[1]]}'
      assertError(world.service, await post(world, nested), invalid('body/input/parts/1/0 must be array'))
      const many = await post(world, `{"title":"x","n":[${'1,'.repeat(60_000)}1]}`)
      assertError(world.service, many, invalid('body/input must have at most 50000 values'))
      await world.quiet()
      assert.deepEqual((await world.request<object>('GET', '/jobs', 'ada')).body, before)
      assert.equal(world.calls(START_RUN), runs)
    })

    test('a good input keeps its text as it came', async () => {
      const world = await shared()
      const input = '{"title" : "Größe \\u0041", "n":9007199254740993.10,"more":[-0,1e400]}'
      const accepted = await post(world, input)
      assert.equal(accepted.status, 202, accepted.text)
      assert.ok(accepted.text.includes(`"input":${input}`), accepted.text)
    })

    test('an output that does not fit is kept, noted and counted', async () => {
      const world = await shared()
      const countMisfits = async () =>
        new MetricsText((await world.service.request('GET', '/metrics')).text).sum('job_output_misfits_total', {
          type: 'loose',
          reason: 'does_not_fit',
        })
      const counted = await countMisfits()
      const good = await world.start('loose', { input: { title: 'Sales', n: 3 } })
      const bad = await world.start('loose', { input: { title: 'Sales', n: 'three' } })
      await world.pass(RUN_MS)
      const [fits, misfit] = [await world.stored(good.id), await world.stored(bad.id)]
      assert.deepEqual([fits.status, fits.output], ['completed', { title: 'Sales', n: 3 }])
      assert.deepEqual([misfit.status, misfit.output], ['completed', { title: 'Sales', n: 'three' }])
      const notesOf = async (id: string) => {
        const entries = (await timelineOf(world, id)).filter(({ kind }) => kind === 'output_check')
        return entries.map(({ detail }) => detail)
      }
      assert.deepEqual(await notesOf(good.id), [])
      assert.deepEqual(await notesOf(bad.id), [{ reason: 'does_not_fit', fault: 'output/n must be integer' }])
      assert.equal(await countMisfits(), counted + 1)
      const found = await world.request<{ data: { id: string }[] }>('GET', '/jobs?output_check=failed', 'ada')
      assert.deepEqual(
        found.body.data.map(({ id }) => id),
        [bad.id],
      )
    })

    test('an output that is too large to be checked is kept, and noted as such', async () => {
      const world = await shared()
      const { id, thread_id } = await world.start('loose')
      const { run_id } = await world.stored(id)
      const huge = { title: 'x', n: 1, rows: Array.from({ length: 60_000 }, () => 1) }
      const payload = { thread_id, run_id, status: 'success', values: { report: huge } }
      assert.equal((await world.callback('loose', payload)).body.outcome, 'applied')
      assert.deepEqual((await world.stored(id)).output, huge)
      const [note] = (await timelineOf(world, id)).filter(({ kind }) => kind === 'output_check')
      assert.deepEqual(note?.detail, { reason: 'too_large', fault: 'output is too large to be checked' })
    })

    test('an input whose check takes too long is refused, and such an output is kept and noted', async () => {
      const world = await shared()
      const raw = (input: string) => `{"type":"slow","input":${input}}`
      const headers = { 'content-type': 'application/json' }
      const refused = await world.request('POST', '/jobs', 'ada', { headers, raw: raw(SLOW_DOCUMENT) })
      assertError(world.service, refused, invalid('body/input takes too long to check'))
      const { id, thread_id } = await world.start('loose')
      const { run_id } = await world.stored(id)
      await world.db.query(sql`update jobs set type = 'slow' where id = ${id}`)
      const payload = `{"thread_id":"${thread_id}","run_id":"${run_id}","status":"success","values":{"report":${SLOW_DOCUMENT}}}`
      assert.equal((await world.callback('slow', null, { raw: payload })).body.outcome, 'applied')
      assert.deepEqual((await world.stored(id)).output, JSON.parse(SLOW_DOCUMENT))
      const [note] = (await timelineOf(world, id)).filter(({ kind }) => kind === 'output_check')
      assert.deepEqual(note?.detail, { reason: 'does_not_fit', fault: 'output takes too long to check' })
    })

    test('a bad answer is refused with its place, and the question stays open', async () => {
      const { world, job, resume } = await pause('pausing')
      assertError(world.service, await resume({ input: 'yes' }), invalid('body/input must be object'))
      assertError(world.service, await resume({ input: {} }), invalid('body/input must have the field "ok"'))
      assert.equal((await world.stored(job.id)).status, 'awaiting_input')
      const taken = await resume({ input: { ok: true } })
      assert.equal(taken.status, 202, taken.text)
    })

    test('several answers are each checked; a breakpoint has none to check', async () => {
      const { world, resume, ids } = await pause('both')
      const answers = Object.fromEntries(ids.map((id) => [id, true]))
      const [first = ''] = ids
      const wrong = await resume({ answers: { ...answers, [first]: 'yes' } })
      assertError(world.service, wrong, invalid(`body/answers/${first} must be boolean`))
      assert.equal((await resume({ answers })).status, 202)
      const breakpoint = await pause('stopping')
      assert.equal((await breakpoint.resume({ input: null })).status, 202)
    })

    test('a job type with schemas is shown by the list of job types', async () => {
      const world = await shared()
      const { body } = await world.request<{ data: Record<string, unknown>[] }>('GET', '/v1/job-types', 'ada')
      const shown = new Map(body.data.map((type) => [type.name, type]))
      const { input_schema, output_schema, resume_schema } = shown.get('report') ?? {}
      assert.deepEqual([input_schema, output_schema, resume_schema], [INPUT, OUTPUT, null])
      assert.deepEqual(shown.get('agent')?.input_schema, null)
    })

    test('a job type with schemas is described in OpenAPI: the input by its type, outputs and answers beside any JSON', async () => {
      const world = await shared()
      const { body } = await world.service.request<OpenapiDocument>('GET', '/openapi.json')
      const validate = validatorsOf(body).compile({ $ref: '#/components/schemas/JobInput' })
      assert.equal(validate({ type: 'report', input: { title: 'Sales', parts: [[]] } }), true)
      assert.equal(validate({ type: 'report', input: { title: 7 } }), false)
      assert.equal(validate({ type: 'report', input: { title: 'x', parts: [1] } }), false, 'definitions are found')
      assert.equal(validate({ type: 'loose', input: 7 }), true)
      assert.equal(validate({ type: 'none', input: 7 }), false)
      assert.equal(validate({ type: 'chosen', input: 7, configurable: { n: 1 } }), true)
      assert.equal(validate({ type: 'chosen', input: 7, configurable: { n: 'x' } }), false)
      assert.equal(validate({ type: 'loose', input: 7, configurable: {} }), false)
      assert.equal(validate({ type: 'report', thread_id: randomUUID(), run_id: randomUUID() }), true)
      const media = body.paths['/jobs']?.post?.requestBody?.content['application/json']
      assert.deepEqual(media?.example, { type: 'report', input: { title: 'Sales' } })
      const schemas = body.components.schemas as Record<string, { properties: Record<string, { anyOf: object[] }> }>
      const output = { $ref: '#/components/schemas/ReportJobOutput' }
      assert.deepEqual(schemas.Job?.properties.output?.anyOf[0], output)
      const answer = { $ref: '#/components/schemas/PausingJobResume' }
      assert.deepEqual(schemas.JobAnswer?.properties.input?.anyOf[0], answer)
    })
  })

  forEachService((under) => {
    test('null under the output key ends a job whose output may be null, by a callback and by a check', async () => {
      const world = await startJobWorld(under, { jobTypes: JOB_TYPES })
      const ends: unknown[] = []
      for (const drop_callbacks of [0, 1]) {
        world.runtime.setFaults({ drop_callbacks })
        const [optional, needed] = [
          await world.start('optional', { input: { note: null } }),
          await world.start('needed', { input: { note: null } }),
        ]
        await world.sweepUntil(async () => (await world.stored(needed.id)).status === 'failed')
        const { status, output, settled_by } = await world.stored(optional.id)
        const [row] = await world.db.query(sql`select output from jobs where id = ${optional.id}`)
        ends.push([status, output, settled_by, row?.output], (await world.stored(needed.id)).error?.code)
      }
      assert.deepEqual(ends, [
        ['completed', null, 'callback', 'null'],
        'output_missing',
        ['completed', null, 'sweep', 'null'],
        'output_missing',
      ])
    })
  })
})
