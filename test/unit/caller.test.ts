import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { test } from 'node:test'
import { newJob } from '../../src/jobs/job-row.ts'
import { BUILT_IN_JOB_TYPES, type JobType } from '../../src/jobs/job-types.ts'
import { askedBy, askerWithoutScopes, callerKeys, identifyBy } from '../../src/jobs/runs/caller.ts'

const SECRET = 'a-secret-of-at-least-24-bytes'
const SERVICE = 'svc_01kq3v7m2x8n4r6t0w9y5z1abc'
const AGENT = BUILT_IN_JOB_TYPES.get('agent') as JobType
const jobOf = (owner: string | null, actor: string | null = null) =>
  newJob(
    AGENT,
    { id: 'job_1', input: null, project_id: null, created_by: owner, thread_id: 't', run_id: null, actor },
    0,
  )

test('only ids of people become pseudonyms', () => {
  const identify = identifyBy({ mode: 'pseudonym', secret: SECRET })
  const hmac = (id: string) => createHmac('sha256', SECRET).update(id).digest('hex')
  assert.equal(identify?.('ada'), hmac('ada'))
  assert.notEqual(identifyBy({ mode: 'pseudonym', secret: `${SECRET}!` })?.('ada'), hmac('ada'))
  for (const id of [SERVICE, 'command_line', 'erased']) assert.equal(identify?.(id), id)
  for (const id of ['svc_ada', `${SERVICE}0`, ` ${SERVICE}`]) assert.equal(identify?.(id), hmac(id))
  assert.throws(() => identifyBy({ mode: 'pseudonym', secret: null }), /need a secret/)
  assert.equal(identifyBy({ mode: 'none', secret: SECRET }), null)
  assert.equal(identifyBy({ mode: 'sub', secret: null })?.('ada'), 'ada')
})

test('the kind of a caller follows from the id of the owner, and a job without an owner has none', () => {
  const identify = identifyBy({ mode: 'sub', secret: null })
  const kindOf = (owner: string | null) => callerKeys(jobOf(owner), identify).caller?.kind
  assert.deepEqual(['ada', SERVICE, 'svc_ada', null].map(kindOf), ['user', 'service_account', 'user', null])
  assert.equal(kindOf('command_line'), 'service_account', 'the command line is no person')
  const { caller, user_id } = callerKeys(jobOf(null, 'root'), identify)
  assert.deepEqual([caller?.user_id, caller?.actor, caller?.scopes, user_id], [null, 'root', [], null])
  assert.deepEqual(callerKeys(jobOf('ada', 'root'), null), { caller: null, user_id: null })
})

test('a command is never taken for the owner, even if the operator is named like the owner', () => {
  const asker = askerWithoutScopes({ kind: 'command_line', id: 'ada' })
  assert.deepEqual(askedBy(asker, 'ada'), { actor: 'command_line', scopes: null })
  assert.deepEqual(askedBy(askerWithoutScopes({ kind: 'user', id: 'ada' }), 'ada'), { actor: null, scopes: null })
  assert.deepEqual(askedBy({ id: 'ada', scopes: ['a b'] }, 'ada'), { actor: null, scopes: '["a b"]' })
  assert.deepEqual(askedBy({ id: 'root', scopes: ['admin:*'] }, 'ada'), { actor: 'root', scopes: null })
})
