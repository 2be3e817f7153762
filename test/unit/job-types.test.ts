import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { JobTypesError, parseJobTypesFile } from '../../src/cli/startup/load-job-types.ts'
import { JsonText } from '../../src/core/json/json-text.ts'
import { BUILT_IN_JOB_TYPES, linkOf } from '../../src/jobs/job-types.ts'
import { wantedValues } from '../../src/jobs/output.ts'
import { DocumentSchema } from '../../src/jobs/schemas/document-schema.ts'

const read = (types: unknown) => parseJobTypesFile(JSON.stringify({ types })).jobTypes

function faultsOf(text: string): string[] {
  try {
    parseJobTypesFile(text)
  } catch (error) {
    assert.ok(error instanceof JobTypesError, String(error))
    const [headline, ...faults] = error.message.split('\n')
    assert.equal(headline, 'The job types have faults:')
    return faults.map((fault) => fault.trim())
  }
  assert.fail('it was taken')
}

const REPORT = { assistant_id: 'report', output_key: 'report' }

describe('job types', () => {
  test('a type is read with every field it gives', () => {
    const type = read({
      report: {
        description: 'Writes a report',
        assistant_id: 'writer',
        output_key: '/result/report',
        usage_key: 'usage',
        may_pause: true,
        deadline_seconds: 60,
        max_running: 5,
        max_running_per_owner: 2,
        answer_within_seconds: 60,
        remind_after_seconds: 59,
        link: 'https://app.example.com/{project_id}/jobs/{job_id}?thread={thread_id}',
        live: ['custom'],
        notifications: { cancelled: { title: 'Gone', body: '' }, reminder: { title: 'Well?', body: '' } },
        output_fields: { title: 'The headline' },
        input_schema: { type: 'object' },
        output_schema: true,
        resume_schema: { type: 'string' },
        configurable_schema: { additionalProperties: false },
      },
    }).get('report')
    assert.deepEqual(type, {
      name: 'report',
      description: 'Writes a report',
      assistantId: 'writer',
      outputKey: '/result/report',
      usageKey: 'usage',
      wantedValues: wantedValues({ outputKey: '/result/report', usageKey: 'usage' }),
      mayPause: true,
      deadlineMs: 60_000,
      maxRunning: 5,
      maxRunningPerOwner: 2,
      answerWithinMs: 60_000,
      remindAfterMs: 59_000,
      link: 'https://app.example.com/{project_id}/jobs/{job_id}?thread={thread_id}',
      live: ['custom'],
      notifications: { cancelled: { title: 'Gone', body: '' }, reminder: { title: 'Well?', body: '' } },
      outputFields: { title: 'The headline' },
      inputSchema: new DocumentSchema({ type: 'object' }),
      outputSchema: new DocumentSchema(true),
      resumeSchema: new DocumentSchema({ type: 'string' }),
      configurableSchema: new DocumentSchema({ additionalProperties: false }),
    })
  })

  test('a link has the ids of its job; without the project that it needs, there is none', () => {
    const job = { id: 'job_1', project_id: 'prj/1', thread_id: 't 1' }
    const link = 'https://app.example.com/{project_id}/jobs/{job_id}?thread={thread_id}'
    assert.equal(linkOf({ link }, job), 'https://app.example.com/prj%2F1/jobs/job_1?thread=t%201')
    assert.equal(linkOf({ link }, { ...job, project_id: null }), null)
    assert.equal(linkOf({ link: 'myapp://jobs/{job_id}' }, { ...job, project_id: null }), 'myapp://jobs/job_1')
    assert.equal(linkOf({ link: null }, job), null)
    assert.equal(linkOf(undefined, job), null)
  })

  const BAD_LINKS: [link: string, problem: string][] = [
    ['/jobs/{job_id}', 'must be a URL, such as https://app.example.com/jobs/{job_id}'],
    ['javascript:alert("{job_id}")', 'must be a URL, such as https://app.example.com/jobs/{job_id}'],
    ['data:text/html,{job_id}', 'must be a URL, such as https://app.example.com/jobs/{job_id}'],
    ['https://app.example.com/{user}', 'may hold {job_id}, {project_id}, {thread_id} and no other braces'],
    ['https://app.example.com/{job_id', 'may hold {job_id}, {project_id}, {thread_id} and no other braces'],
    ['https://app.example.com/job_id}', 'may hold {job_id}, {project_id}, {thread_id} and no other braces'],
    ['https://{project_id}.example.com/', 'must not have an id in its host'],
  ]
  for (const [link, problem] of BAD_LINKS) {
    test(`the link ${link} is refused at the start`, () => {
      assert.throws(
        () => read({ report: { ...REPORT, link } }),
        (error: Error) => error.message.includes(`/types/report/link ${problem}`),
      )
    })
  }

  test('omitted fields of a type have defaults, and so have its notification texts', () => {
    const type = read({ report: REPORT }).get('report')
    assert.equal(type?.deadlineMs, 3_600_000)
    assert.equal(type?.mayPause, true)
    assert.equal(type?.maxRunning, null)
    assert.deepEqual(type?.live, [])
    assert.equal(type?.usageKey, null)
    assert.equal(type?.description, null)
    assert.deepEqual(type?.outputFields, {})
    assert.deepEqual([type?.maxRunningPerOwner, type?.answerWithinMs, type?.remindAfterMs], [null, null, null])
    assert.deepEqual(Object.keys(type?.notifications ?? {}), ['reminder', 'completed', 'failed', 'awaiting_input'])
  })

  test('a configurable_schema that would allow a reserved key is refused', () => {
    const schemaOf = (properties: object, more: object = {}) => ({ properties, additionalProperties: false, ...more })
    const place = '/types/report/configurable_schema'
    const open = `${place} must say "additionalProperties": false: otherwise a client could set reserved keys such as caller`
    const faultsIn = (configurable_schema: unknown) =>
      faultsOf(JSON.stringify({ types: { report: { ...REPORT, configurable_schema } } }))
    for (const schema of [
      true,
      {},
      { type: 'object', properties: { language: true } },
      { properties: {}, additionalProperties: true },
      { properties: {}, additionalProperties: { type: 'string' } },
      { allOf: [schemaOf({ language: true })] },
      { propertyNames: { not: { const: 'caller' } } },
    ]) {
      assert.deepEqual(faultsIn(schema), [open], JSON.stringify(schema))
    }
    const names = [
      'caller',
      'user_id',
      'thread_id',
      'run_id',
      'graph_id',
      'assistant_id',
      'checkpoint',
      'checkpoint_id',
    ]
    for (const name of [...names, 'checkpoint_ns', 'langgraph_auth_user', '__pregel_resuming', '__x']) {
      const fault = `${place}/properties/${name} is reserved: only the service and the runtime set it`
      assert.deepEqual(faultsIn(schemaOf({ language: true, [name]: { type: 'string' } })), [fault])
    }
    const patterns = faultsIn(schemaOf({}, { patternProperties: { '^c': true } }))
    assert.deepEqual(patterns, [`${place}/patternProperties is not supported: name each key in properties`])
    const allowed = schemaOf({ language: { enum: ['de'] }, caller: false, my_caller: { type: 'string' } })
    const type = read({ report: { ...REPORT, configurable_schema: allowed } }).get('report')
    assert.deepEqual(type?.configurableSchema?.json, allowed)
  })

  test('the type agent is always there, and its output is the last assistant message', () => {
    for (const types of [BUILT_IN_JOB_TYPES, read({}), read({ report: REPORT })]) {
      const agent = types.get('agent')
      assert.equal(agent?.assistantId, 'agent')
      assert.equal(agent?.outputKey, null)
      assert.equal(agent?.mayPause, true)
      assert.deepEqual(agent?.live, ['messages', 'custom'])
    }
  })

  test('a file may give agent another graph, deadline and output', () => {
    const agent = read({ agent: { assistant_id: 'mine', output_key: 'answer', deadline_seconds: 5 } }).get('agent')
    assert.equal(agent?.assistantId, 'mine')
    assert.equal(agent?.outputKey, 'answer')
    assert.equal(agent?.deadlineMs, 5_000)
    assert.equal(agent?.mayPause, true, 'its messages are there while it pauses, too')
  })

  test('a type that defines its own notifications still has a text for the reminder', () => {
    const { notifications } = read({ report: { ...REPORT, notifications: {} } }).get('report') ?? {}
    assert.deepEqual(Object.keys(notifications ?? {}), ['reminder'])
  })

  test('the shipped file is valid', () => {
    const shipped = readFileSync(new URL('../../job-types.json', import.meta.url), 'utf8')
    const types = parseJobTypesFile(shipped).jobTypes
    assert.ok(types.size >= 3)
    assert.deepEqual(
      [...types.values()].filter(({ mayPause }) => !mayPause).map(({ name }) => name),
      ['report', 'summary'],
    )
    for (const type of types.values())
      assert.ok(Object.keys(type.outputFields).length > 0, `${type.name} is documented`)
    for (const answer of ['"yes"', '""', 'false', '0', 'null', '{"approved":true}', '[]']) {
      assert.equal(types.get('agent')?.resumeSchema?.faultOf(new JsonText(answer), 'input'), null, answer)
    }
  })

  const faults: [name: string, types: unknown, fault: RegExp][] = [
    ['an unknown field', { report: { ...REPORT, outputkey: 'x' } }, /^\/types\/report .*additional properties/],
    ['no assistant', { report: { output_key: 'x' } }, /^\/types\/report .*required.*assistant_id/],
    ['an empty assistant', { report: { ...REPORT, assistant_id: '' } }, /^\/types\/report\/assistant_id .*1 char/],
    [
      'an assistant of another type',
      { report: { ...REPORT, assistant_id: 1 } },
      /^\/types\/report\/assistant_id .*string/,
    ],
    [
      'a reminder that is not before the end',
      { report: { ...REPORT, answer_within_seconds: 60, remind_after_seconds: 60 } },
      /^\/types\/report\/remind_after_seconds must be less than answer_within_seconds$/,
    ],
    [
      'no time to answer',
      { report: { ...REPORT, answer_within_seconds: 0 } },
      /^\/types\/report\/answer_within_seconds /,
    ],
    [
      'no run of an owner',
      { report: { ...REPORT, max_running_per_owner: 0 } },
      /^\/types\/report\/max_running_per_owner /,
    ],
    ['an empty output key', { report: { ...REPORT, output_key: '' } }, /^\/types\/report\/output_key .*1 char/],
    ['no output key', { report: { assistant_id: 'x' } }, /^\/types\/report must have an output_key$/],
    ['a pointer with a wrong escape', { report: { ...REPORT, output_key: '/a~2b' } }, /^\/types\/report\/output_key /],
    [
      'a usage pointer with a wrong escape',
      { report: { ...REPORT, usage_key: '/a~' } },
      /^\/types\/report\/usage_key /,
    ],
    [
      'a deadline of nothing',
      { report: { ...REPORT, deadline_seconds: 0 } },
      /^\/types\/report\/deadline_seconds .*>= 1/,
    ],
    ['no run at all', { report: { ...REPORT, max_running: 0 } }, /^\/types\/report\/max_running .*>= 1/],
    ['half a second', { report: { ...REPORT, deadline_seconds: 1.5 } }, /^\/types\/report\/deadline_seconds .*integer/],
    [
      'a deadline beyond a month',
      { report: { ...REPORT, deadline_seconds: 2_592_001 } },
      /deadline_seconds .*<= 2592000/,
    ],
    ['an unknown kind of live output', { report: { ...REPORT, live: ['values'] } }, /^\/types\/report\/live\/0 /],
    ['live output as text', { report: { ...REPORT, live: 'messages' } }, /^\/types\/report\/live .*array/],
    ['live output twice', { report: { ...REPORT, live: ['custom', 'custom'] } }, /^\/types\/report\/live .*duplicate/],
    ['may_pause as text', { report: { ...REPORT, may_pause: 'yes' } }, /^\/types\/report\/may_pause .*boolean/],
    [
      'a notification for a status that is none',
      { report: { ...REPORT, notifications: { done: { title: 'x', body: '' } } } },
      /^\/types\/report\/notifications .*additional properties/,
    ],
    [
      'a notification without a title',
      { report: { ...REPORT, notifications: { failed: { body: '' } } } },
      /^\/types\/report\/notifications\/failed .*required.*title/,
    ],
    [
      'a text no database can hold',
      { report: { ...REPORT, notifications: { failed: { title: 'a\u0000b', body: '' } } } },
      /^\/types\/report\/notifications\/failed\/title must not contain NUL or unpaired surrogates$/,
    ],
    [
      'a body no database can hold',
      { report: { ...REPORT, notifications: { failed: { title: 'x', body: '\ud800' } } } },
      /^\/types\/report\/notifications\/failed\/body must not contain NUL/,
    ],
    [
      'output fields that are no texts',
      { report: { ...REPORT, output_fields: { n: 1 } } },
      /output_fields\/n .*string/,
    ],
    ['a name in upper case', { Report: REPORT }, /^\/types\/Report must be named with lower-case letters/],
    ['a name with a slash', { 'a/b': REPORT }, /must be named with lower-case letters/],
    ['a name that begins with a digit', { '1a': REPORT }, /must be named with lower-case letters/],
    ['a name that is too long', { ['a'.repeat(65)]: REPORT }, /^\/types has a type named "a{64}", which cannot be/],
    ['types as a list', [], /^\/types .*object/],
  ]
  for (const [name, types, fault] of faults) {
    test(`${name} is refused, and named with its place`, () => {
      const found = faultsOf(JSON.stringify({ types }))
      assert.ok(
        found.some((line) => fault.test(line)),
        `${fault} is not among\n${found.join('\n')}`,
      )
    })
  }

  test('texts for project changes are read from the same file, and their faults are named with their place', () => {
    const created = { title: 'New project', body: '' }
    const fileWith = (project_notifications: unknown) => JSON.stringify({ types: {}, project_notifications })
    assert.deepEqual(parseJobTypesFile(fileWith({ created })).projectNotifications, { created })
    assert.deepEqual(parseJobTypesFile('{"types":{}}').projectNotifications, {})
    assert.match(faultsOf(fileWith({ renamed: created })).join(), /^\/project_notifications .*additional properties/)
    assert.deepEqual(faultsOf(fileWith({ created: { title: 'a\u0000b', body: '' } })), [
      '/project_notifications/created/title must not contain NUL or unpaired surrogates',
    ])
  })

  test('an odd name is refused by that name, whatever the type holds, and never shown whole', () => {
    const names = ['__proto__', 'constructor', '', ' ', 'a\nb', '\u2028', 'a\u0000', '\ud800', 'toString', 'é']
    for (const name of [...names, 'a'.repeat(100_000)]) {
      for (const fields of [JSON.stringify(REPORT), 'null', '[]', '{}', '1']) {
        const [fault = '', ...others] = faultsOf(`{"types":{${JSON.stringify(name)}:${fields}}}`)
        const shown = JSON.stringify(name.slice(0, 64))
        assert.equal(fault, `/types has a type named ${shown}, which cannot be a name`)
        assert.deepEqual(others, [])
      }
    }
  })

  test('every fault is named at once', () => {
    const types = { One: REPORT, two: { assistant_id: 'x' }, three: { ...REPORT, output_key: '/~' } }
    assert.equal(faultsOf(JSON.stringify({ types })).length, 3)
    const forms = { one: { ...REPORT, may_pause: 1 }, two: { ...REPORT, deadline_seconds: -1 }, three: {} }
    assert.ok(faultsOf(JSON.stringify({ types: forms })).length >= 3)
  })

  test('a file that is not JSON, or not a job types document, is refused', () => {
    assert.match(faultsOf('{').join(), /^it is not valid JSON: /)
    assert.match(faultsOf('').join(), /^it is not valid JSON: /)
    assert.match(faultsOf('[]').join(), /object/)
    assert.match(faultsOf('{}').join(), /required.*types/)
    assert.match(faultsOf('{"types":{},"more":1}').join(), /additional properties/)
  })
})
