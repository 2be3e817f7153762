import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Breaker } from '../../src/core/async/breaker.ts'
import type { RunObservation } from '../../src/jobs/job.ts'
import type { LeasedJob } from '../../src/jobs/leases/lease-store.ts'
import { inspectRun } from '../../src/jobs/runs/inspect.ts'
import { RuntimeClient } from '../../src/runtime/runtime-client.ts'
import { TEST_JOB_TYPES } from '../support/job-world.ts'
import { ManualClock } from '../support/manual-clock.ts'

const THREAD = '9a4bcb3e-4d5c-4b9e-8f00-000000000001'
const RUN = '1efcf3a0-0000-6000-8000-000000000001'
const JSON_TYPE = { 'content-type': 'application/json' }

/** Inspects the run of a job that is to be cancelled. The runtime gives these answers, one after the other. */
async function inspectCancelled(answers: Response[]): Promise<{ observed: RunObservation; found: RunObservation[] }> {
  const clock = new ManualClock()
  const breaker = new Breaker({ clock, threshold: 1, openMs: 1_000, maxOpenMs: 1_000 })
  const fetch = async () => answers.shift() ?? new Response(null, { status: 503 })
  const runtime = new RuntimeClient({
    url: 'http://runtime.test',
    apiKey: null,
    timeoutMs: 1_000,
    fetch,
    clock,
    breaker,
  })
  const job = { thread_id: THREAD, run_id: RUN, cancel_requested_at: 1, resume_questions: null } as LeasedJob
  const type = TEST_JOB_TYPES.get('report')
  assert.ok(type)
  const found: RunObservation[] = []
  const onFound = (observed: RunObservation) => found.push(observed)
  const { signal } = new AbortController()
  return { observed: await inspectRun(runtime, { job, runId: RUN, type, onFound, signal }), found }
}

const running = () =>
  new Response(JSON.stringify({ run_id: RUN, thread_id: THREAD, status: 'running', metadata: {} }), {
    headers: JSON_TYPE,
  })
const accepted = () => new Response(null, { status: 202 })
const missing = () => new Response('{"detail":"Run not found"}', { status: 404, headers: JSON_TYPE })

test('a run that a replica hides after it was found in the same check is not missing', async () => {
  const { observed, found } = await inspectCancelled([running(), accepted(), missing()])
  assert.deepEqual(
    [observed, ...found].map(({ verdict }) => verdict),
    [{ kind: 'running' }, { kind: 'running' }],
  )
})

test('a run that is not found at all is missing, which must be confirmed', async () => {
  const { observed, found } = await inspectCancelled([missing()])
  assert.deepEqual([observed.verdict, found], [{ kind: 'cancelled', confirm: 'run_missing' }, []])
})
