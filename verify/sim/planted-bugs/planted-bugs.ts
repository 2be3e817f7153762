export interface Edit {
  /** From the root of the repository. */
  file: string
  find: string
  put: string
}

/** A mistake that a careful programmer could make, as edits of the source while it is loaded. */
export interface PlantedBug {
  name: string
  /** What it gets wrong. */
  wrong: string
  edits: Edit[]
}

const bug = (name: string, wrong: string, ...edits: [file: string, find: string, put: string][]): PlantedBug => ({
  name,
  wrong,
  edits: edits.map(([file, find, put]) => ({ file: `src/${file}`, find, put })),
})

/** Each breaks one guarantee of the service. The simulation must find all of them. */
export const PLANTED_BUGS: readonly PlantedBug[] = [
  bug('ack-before-commit', 'a callback is answered before it is committed', [
    'jobs/callbacks/callback-intake.ts',
    'const answer = await this.#commits.submit(callback)',
    `void this.#commits.submit(callback).catch(() => {})
    const answer = { outcome: 'deferred', jobId: callback.jobId ?? 'unknown' }`,
  ]),
  bug('ack-failed-commit', 'a failed commit is answered as a success', [
    'db/group-commit.ts',
    'for (const { reject } of batch) reject(error)',
    "for (const { resolve } of batch) resolve({ outcome: 'duplicate', jobId: 'unknown' })",
  ]),
  bug(
    'usage-not-unique',
    'a repeated end is counted again, and no unique key forbids it',
    [
      'jobs/settlement/settlement.ts',
      'if (to === null) return',
      'if (to === null && isTerminal(job.status)) this.#countUsage(job, verdict)\n    if (to === null) return',
    ],
    ['usage/usage-store.ts', 'on conflict (job_id) do nothing\n    returning', 'returning'],
    [
      'db/migration-files.ts',
      ".replaceAll('\\r\\n', '\\n')",
      ".replaceAll('\\r\\n', '\\n').replace('job_id text primary key references jobs (id),', 'job_id text references jobs (id),')",
    ],
  ),
  bug('terminal-not-final', 'a job that has ended can end again', [
    'jobs/job-machine.ts',
    'completed: {},\n  failed: {},',
    "completed: { completed: 'completed', failed: 'failed', cancelled: 'cancelled' },\n  failed: { completed: 'completed', failed: 'failed' },",
  ]),
  bug(
    'effect-outside-transaction',
    'push intents are stored after the commit of the job’s end',
    ['jobs/settlement/settlement.ts', '      recordPushIntents(tx, this.#intents, pushOptOut),\n', ''],
    [
      'jobs/settlement/settlement.ts',
      '  async write(): Promise<void> {',
      `  writeLater(db) {
    return db.transaction((tx) => recordPushIntents(tx, this.#intents, this.#context.pushOptOut))
  }

  async write(): Promise<void> {`,
    ],
    [
      'jobs/settlement/settle.ts',
      '  countEnds(context, settlement.ended)',
      '  await settlement.writeLater(context.db)\n  countEnds(context, settlement.ended)',
    ],
  ),
  bug('event-outside-transaction', 'the event of a new job is stored after its commit', [
    'jobs/jobs.ts',
    "await appendEvents(tx, [jobEvent(job, 'job.created', `${job.id}:created`, job.created_at)])",
    "setImmediate(() => void this.#context.db.transaction((later) => appendEvents(later, [jobEvent(job, 'job.created', `${job.id}:created`, job.created_at)])).catch(() => {}))",
  ]),
  bug(
    'event-twice',
    'an event can be stored twice',
    [
      'jobs/settlement/settlement.ts',
      '      appendEvents(tx, this.#events),',
      '      appendEvents(tx, this.#events),\n      appendEvents(tx, this.#events),',
    ],
    ['events/event-store.ts', 'on conflict (cause) do nothing', ''],
    [
      'db/migration-files.ts',
      ".replaceAll('\\r\\n', '\\n')",
      ".replaceAll('\\r\\n', '\\n').replace('cause text not null unique,\\n  data', 'cause text not null,\\n  data')",
    ],
  ),
  bug('lease-ignored-by-readers', 'a read calls the runtime while another process is checking the job', [
    'jobs/worker/lease-store.ts',
    'where id = ${id} and ${IS_WATCHED} and (lease_until is null or lease_until <= ${lease.nowMs})',
    'where id = ${id} and ${IS_WATCHED}',
  ]),
  bug('lease-ignored-by-sweep', 'the sweeps of two nodes lease the same job', [
    'jobs/worker/lease-store.ts',
    'where next_check_at <= ${lease.nowMs} and (lease_until is null or lease_until <= ${lease.nowMs})',
    'where next_check_at <= ${lease.nowMs}',
  ]),
  bug(
    'lease-without-fencing',
    'a worker stores its result after it has lost the lease',
    ['jobs/worker/lease-store.ts', 'where id = ${id} and lease_token = ${token}', 'where id = ${id}'],
    [
      'jobs/worker/lease-store.ts',
      'where id = ${record.id} and lease_token = ${record.token}',
      'where id = ${record.id}',
    ],
  ),
  bug('start-without-lookup', 'a start that may have succeeded is repeated without looking for its run', [
    'jobs/worker/start.ts',
    'const found = await findOwnRun(runtime, job, signal)\n    if (found) return started(found)',
    '',
  ]),
  bug('start-after-the-lease', 'a worker that was suspended starts the run although another worker has the lease', [
    'jobs/worker/start.ts',
    'if (context.clock.now() + runtime.timeoutMs > (job.lease_until ?? 0)) {',
    'if (context.clock.now() < 0) {',
  ]),
  bug('start-after-cancel', 'a job that is cancelled during the search for its run is started nevertheless', [
    'jobs/worker/lease-store.ts',
    ' and cancel_requested_at is null and finished_at is null',
    '',
  ]),
  bug('gateway-refuses-start', 'the 404 of a gateway that has lost the runtime counts as a refusal by the runtime', [
    'runtime/classify-answers.ts',
    'return status === 404 || status === 405 || status === 410',
    'return status === 1_000',
  ]),
  bug('taken-run-unnoticed', 'a job whose run belongs to another job retries for ever', [
    'jobs/worker/process-job.ts',
    'if (!(error instanceof UniqueViolation) || job.run_id !== null) throw error',
    'if (error) throw error',
  ]),
  bug('found-late-is-overdue', 'a run found after the deadline fails the job without a check of the run', [
    'jobs/worker/process-job.ts',
    'if (job.run_id === null) return await startJobRun(context, runtime, { job, type, fresh, signal })',
    'if (job.run_id === null) return failIfOverdue(context, job, await startJobRun(context, runtime, { job, type, fresh, signal }))',
  ]),
  bug('resume-same-number', 'a resumed run has the number of the earlier run', [
    'jobs/jobs.ts',
    'job.run_seq += 1',
    '',
  ]),
  bug('pause-taken-for-done', 'the `success` callback of a graph that may pause completes the job unchecked', [
    'jobs/settlement/verdict.ts',
    'if (canAsk && type.mayPause)',
    'if (canAsk && values === null)',
  ]),
  bug('interrupt-taken-for-cancel', 'a pause with the status `interrupted` counts as a cancellation', [
    'jobs/settlement/verdict.ts',
    'return state && state.interrupts.length > 0',
    'return state && state.interrupts.length > 1_000',
  ]),
  bug(
    'output-missing-completes',
    'a run without its output completes the job',
    [
      'jobs/settlement/verdict.ts',
      'return completed ?? { ...outputMissing(type), twice: true }',
      "return completed ?? { kind: 'completed', output: JsonText.of(null), tokens: NO_TOKENS }",
    ],
    [
      'jobs/settlement/verdict.ts',
      'import { extractOutput',
      "import { JsonText } from '../../core/json/json-text.ts'\nimport { NO_TOKENS } from '../job.ts'\nimport { extractOutput",
    ],
  ),
  bug('falsy-output-missing', 'an output that is false, zero or empty counts as missing', [
    'jobs/settlement/output.ts',
    "found === undefined || found.kind === 'null' ?",
    'found === undefined || !found.parse() ?',
  ]),
  bug('big-numbers-rounded', 'numbers beyond the precision of JavaScript are rounded', [
    'jobs/settlement/settlement.ts',
    'job.output = verdict.output.text',
    'job.output = JSON.stringify(JSON.parse(verdict.output.text))',
  ]),
  bug('newest-state-is-mine', 'the newest checkpoint of the thread is read, also when another run wrote it', [
    'runtime/runtime-client.ts',
    'if (newest === null || newest.runId === runId) return newest',
    'if (newest === null || newest.runId !== null) return newest',
  ]),
  bug(
    'runtime-error-is-run-lost',
    'an error of the runtime counts as a deleted run',
    ['runtime/classify-answers.ts', 'return status >= 500 || (status >= 300', 'return (status >= 300'],
    ['runtime/classify-answers.ts', 'if (status === 404) return', 'if (status === 404 || status >= 500) return'],
  ),
  bug(
    'reported-end-forgotten',
    'the end that a callback reported is dropped when the runtime deletes the run before it is confirmed',
    [
      'jobs/worker/process-job.ts',
      'return (wasLostBefore(context, job) && (await findReportedEnd(context, job, type))) || observed',
      'return observed',
    ],
  ),
  bug(
    'foreign-token-redacted',
    'a signed link in an output loses its token when the output is read from the stored callback',
    ['runtime/redact-tokens.ts', '(${PATH}${QUERY}token', '((?:[?&]|\\\\u0026|\\\\u003f|%26|%3f)token'],
  ),
  bug('deadline-ignored', 'a run that never ends is checked for ever', [
    'jobs/worker/process-job.ts',
    'return isActive && isOverdue(context, job) ?',
    'return isActive && context.clock.now() < 0 ?',
  ]),
  bug('cancel-not-passed-on', 'a cancellation is not sent to the runtime', [
    'jobs/worker/inspect.ts',
    'if (run && job.cancel_requested_at !== null && !needsState(run.status)) {',
    'if (run && job.cancel_requested_at !== null && run.status === "nothing") {',
  ]),
  bug('next-check-forgotten', 'after a check without a result there is no next check', [
    'jobs/worker/lease-store.ts',
    'else cast(${record.nextMs} as bigint) end',
    'else null end',
  ]),
  bug('no-backoff', 'the sweep checks every job every second', [
    'jobs/worker/record-check.ts',
    'const backedOffMs = atMs + backoffMs(CHECK_BACKOFF, justStarted ? 0 : job.check_attempts, random)',
    'const backedOffMs = atMs',
  ]),
  bug(
    'breaker-stays-open',
    'the circuit breaker never closes again',
    [
      'core/async/breaker.ts',
      'succeeded(): void {\n    this.#failures = 0',
      'succeeded(): void {\n    if (this.#openings > 0) return\n    this.#failures = 0',
    ],
    [
      'core/async/breaker.ts',
      "return this.#probing || this.#options.clock.now() < this.#openUntilMs ? 'open' : 'probing'",
      "return 'open'",
    ],
  ),
  bug('callback-authenticity-skipped', 'callbacks are accepted without a credential', [
    'auth/callback-authenticity.ts',
    'if (this.acceptsAll) return { authentic: true, jobId: null }',
    'if (this.#secrets.length >= 0) return { authentic: true, jobId: null }',
  ]),
  bug('old-signature-accepted', 'an old signature is accepted', [
    'auth/callback-authenticity.ts',
    'if (ageSeconds > SIGNATURE_TOLERANCE_SECONDS) return false',
    '',
  ]),
  bug('callback-without-job-adopted', 'a callback without a job id creates a job although its thread belongs to one', [
    'jobs/callbacks/match-callbacks.ts',
    'const mentioned = payload.jobId === null ? awaitingRun.get(payload.threadId)',
    'const mentioned = payload.jobId === null ? undefined',
  ]),
  bug(
    'credential-of-another-job',
    'the credential of one job is accepted for the run of another job',
    ['jobs/callbacks/match-callbacks.ts', 'const named = jobId === null ?', 'const named = jobId === null || true ?'],
    [
      'jobs/callbacks/match-callbacks.ts',
      'const wrongJob = (jobId !== null && job?.id !== jobId) || (owner !== undefined && owner.id !== job?.id)',
      'const wrongJob = false',
    ],
  ),
  bug('token-cached-past-expiry', 'a cached token is accepted after its expiry', [
    'auth/token-cache.ts',
    'if (isKeyInSet && this.#clock.now() < entry.principal.expiresAtMs) return',
    'if (isKeyInSet) return',
  ]),
  bug('signature-not-checked', 'the signature of a token is not checked', [
    'auth/token-verifier.ts',
    'await checkSignature(token, key)',
    'void checkSignature(token, key).catch(() => {})',
  ]),
  bug('idempotency-answer-not-stored', 'a request repeated with the same Idempotency-Key creates a second job', [
    'http/idempotency.ts',
    'if (earlier && earlier.expires_at > now) return { earlier }',
    '',
  ]),
  bug('counter-not-in-sync', 'the usage counter of a month is overwritten instead of increased', [
    'usage/usage-store.ts',
    'runs = usage_counters.runs + excluded.runs,',
    'runs = excluded.runs,',
  ]),
  bug('claim-leaves-usage', 'a job that gets its owner late leaves the usage without an owner', [
    'jobs/jobs.ts',
    'await assignUsage(tx, { jobId, subject: createdBy })',
    '',
  ]),
  bug(
    'stream-repeats',
    'a resumed stream repeats the last event (cursor off by one)',
    ['events/event-store.ts', 'sql`seq > ${after}`', 'sql`seq >= ${after}`'],
    ['events/open-stream.ts', 'if (event.seq <= this.#position || this.#isOver) return', 'if (this.#isOver) return'],
  ),
  bug('stream-skips', 'the history of a stream ends one event too early', [
    'events/event-store.ts',
    'sql`seq <= ${upTo}`',
    'sql`seq < ${upTo}`',
  ]),
  bug('push-marked-before-sent', 'a push is marked as sent before it is sent', [
    'push/outbox/outbox.ts',
    'const outcome = await attemptDelivery(',
    `await this.#mark(this.#judge.markOf({ delivery, outcome: { kind: 'sent', messageId: 'm' }, leaseToken: lease.token }), lease.untilMs)
      const outcome = await attemptDelivery(`,
  ]),
  bug('push-retry-forgotten', 'a push is not retried', [
    'push/outbox/delivery-judge.ts',
    'const isTooLate = retryAtMs >= giveUpAt(delivery)',
    'const isTooLate = retryAtMs > 0',
  ]),
  bug('push-lease-ignored', 'two nodes send the same push', [
    'push/outbox/delivery-store.ts',
    ' and (lease_until is null or lease_until <= ${lease.nowMs})',
    '',
  ]),
  bug('push-tag-constant', 'all pushes have the same tag and replace each other', [
    'push/outbox/attempt-delivery.ts',
    'tag: delivery.job_id ?? delivery.notification_id,',
    "tag: 'project-api',",
  ]),
  bug('push-tag-per-attempt', 'a repeated push has another tag and shows twice', [
    'push/outbox/attempt-delivery.ts',
    'tag: delivery.job_id ?? delivery.notification_id,',
    'tag: `${delivery.job_id ?? delivery.notification_id}${delivery.attempts > 1 ? delivery.attempts : ""}`,',
  ]),
  bug('push-enabled-ignored', 'a user who has turned push off gets one', [
    'push/intent-store.ts',
    'and not ${pushOptOut(sql`r.subject`)}',
    '',
  ]),
  bug('disabled-device-not-skipped', 'a disabled device gets pushes', [
    'push/device-store.ts',
    'sql`d.disabled_at is null`',
    'sql`1 = 1`',
  ]),
]
