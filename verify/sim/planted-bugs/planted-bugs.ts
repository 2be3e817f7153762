export interface Edit {
  /** From the root of the repository. */
  file: string
  find: string
  put: string
}

/** A mistake that a careful programmer could make, as edits of the source while it is loaded. */
export interface PlantedBug {
  name: string
  /** A description of the mistake. */
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
  bug('caller-of-another-turn', 'a resumed run carries the principal that asked for the run before it', [
    'jobs/actions/jobs.ts',
    '      Object.assign(job, askedBy(asker, job.created_by))\n',
    '',
  ]),
  bug('ack-before-commit', 'a callback is answered before it is committed', [
    'jobs/callbacks/callback-intake.ts',
    'const answer = await this.#commits.submit(callback)',
    `void this.#commits.submit(callback).catch(() => {})
    const answer = { outcome: 'deferred', jobId: callback.jobId ?? 'unknown' }`,
  ]),
  bug('ack-failed-commit', 'a failed commit is answered as a success', [
    'db/write-batcher.ts',
    'for (const { reject } of batch) reject(error)',
    "for (const { resolve } of batch) resolve({ outcome: 'duplicate', jobId: 'unknown' })",
  ]),
  bug('usage-not-unique', 'a repeated end is counted again', [
    'jobs/settlement/settlement.ts',
    'if (to === null) return',
    'if (to === null && isTerminal(job.status)) this.#countUsage(job, verdict)\n    if (to === null) return',
  ]),
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
    ['jobs/settlement/settle.ts', 'const { result, onCommitted } =', 'const { result, onCommitted, settlement } ='],
    [
      'jobs/settlement/settle.ts',
      'work(tx, settlement), onCommitted }',
      'work(tx, settlement), onCommitted, settlement }',
    ],
    ['jobs/settlement/settle.ts', '  onCommitted()\n', '  onCommitted()\n  await settlement.writeLater(context.db)\n'],
  ),
  bug('event-outside-transaction', 'the event of a new job is stored after its commit', [
    'jobs/actions/jobs.ts',
    "await appendEvents(tx, [jobEvent(job, 'job.created', { cause: `${id}:created`, atMs, types: this.#context.types })])",
    "setImmediate(() => void this.#context.db.transaction((later) => appendEvents(later, [jobEvent(job, 'job.created', { cause: `${id}:created`, atMs, types: this.#context.types })])).catch(() => {}))",
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
      "const own = await readFile(new URL(file, folder), 'utf8')",
      "const own = (await readFile(new URL(file, folder), 'utf8')).replace('cause text not null unique,\\n  data', 'cause text not null,\\n  data')",
    ],
  ),
  bug('lease-ignored-by-readers', 'a read calls the runtime while another process is checking the job', [
    'jobs/leases/lease-store.ts',
    'where job_id = ${id} and ${isFree(lease.nowMs)} and',
    'where job_id = ${id} and',
  ]),
  bug('lease-ignored-by-sweep', 'the sweeps of two nodes lease the same job', [
    'jobs/leases/lease-store.ts',
    'where ${dueAt} <= ${lease.nowMs} and ${isWanted(lease)}',
    'where ${dueAt} <= ${lease.nowMs}',
  ]),
  bug(
    'lease-without-fencing',
    'a worker stores its result after it has lost the lease',
    ['jobs/leases/lease-store.ts', 'where job_id = ${id} and lease_id = ${token}', 'where job_id = ${id}'],
    [
      'jobs/leases/lease-store.ts',
      'where job_checks.job_id = r.job_id and lease_id = r.token',
      'where job_checks.job_id = r.job_id',
    ],
  ),
  bug('start-without-lookup', 'a start that may have succeeded is repeated without looking for its run', [
    'jobs/runs/start.ts',
    'const found = await findStartedRun(context, runtime, { job, signal })\n    if (found) return started(found)',
    '',
  ]),
  bug('start-after-the-lease', 'a worker that was suspended starts the run although another worker has the lease', [
    'jobs/runs/start.ts',
    'if (!holdsLease() || context.clock.now() + START_TIMEOUT_MS > (job.lease_until ?? 0)) {',
    'if (context.clock.now() < 0) {',
  ]),
  bug('abandoned-start-forgotten', 'a start whose request was cut off counts as never made', [
    'jobs/runs/start.ts',
    'const wait = waitForRun(job, nowMs)',
    'const wait = null',
  ]),
  bug('give-up-forgets-end', 'a job is given up although a callback has reported its end', [
    'jobs/worker/process-job.ts',
    'if (!reported) return overdue',
    'if (type) return overdue',
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
    'if (job.run_id === null) return await startJobRun(context, runtime, { ...work, type, onFound })',
    'if (job.run_id === null) return failIfOverdue(context, job, await startJobRun(context, runtime, { ...work, type, onFound }))',
  ]),
  bug('resume-same-number', 'a resumed run has the number of the earlier run', [
    'jobs/actions/jobs.ts',
    'job.run_seq += 1',
    '',
  ]),
  bug('answered-elsewhere-ignored', 'a question that another client answered stays open for ever', [
    'jobs/runs/inspect-question.ts',
    'if (isOpen && answered.length > 0) return stillPaused',
    'return stillPaused',
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
      "return { ...outputMissing(type), confirm: state === null ? 'state_missing' : 'output_missing' }",
      "return { kind: 'completed', output: JsonText.of(null), tokens: NO_TOKENS }",
    ],
    [
      'jobs/settlement/verdict.ts',
      'import { extractOutput',
      "import { JsonText } from '../../core/json/json-text.ts'\nimport { NO_TOKENS } from '../job.ts'\nimport { extractOutput",
    ],
  ),
  bug('falsy-output-missing', 'an output that is false, zero or empty counts as missing', [
    'jobs/output.ts',
    "found.kind === 'null' && !allowsNull() ?",
    '!found.parse() && !allowsNull() ?',
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
    ['jobs/worker/process-job.ts', 'return await replaceByReport(context, job, { type, observed })', 'return observed'],
  ),
  bug(
    'foreign-token-redacted',
    'a signed link in an output loses its token when the output is read from the stored callback',
    ['runtime/redact-tokens.ts', '(${PATH}${QUERY}token', '((?:[?&]|\\\\u0026|\\\\u003f|%26|%3f)token'],
  ),
  bug('falsy-answer-dropped', 'an answer goes to the runtime without the id of its question', [
    'jobs/answers.ts',
    'command: id === null ? writeJson({ resume: input }) : byId({ [id]: input })',
    'command: writeJson({ resume: input })',
  ]),
  bug('draft-taken-for-done', 'a read completes a graph that wrote its output and then paused', [
    'jobs/settlement/verdict.ts',
    'if (paused && (type.mayPause || completed === null))',
    'if (paused && completed === null)',
  ]),
  bug('open-step-taken-for-done', 'a step whose nodes have all run, but that is not finished, counts as the end', [
    'runtime/read-answers.ts',
    'isDone: next.length === 0 && tasks.length === 0',
    "isDone: next.length === 0 && tasks.every((task) => (task.at('interrupts')?.items ?? []).length === 0)",
  ]),
  bug(
    'reader-cuts-check',
    'a check ends with the time of its reader, and makes the next one later',
    [
      'jobs/worker/job-worker.ts',
      'const work = job.run_id === null ? this.#startInTurn(job, cause) : this.#process(job, cause)',
      `const cut = new AbortController()
    if (cause.via === 'read') void this.#context.clock.sleep(3_000).then(() => cut.abort(new Error('the reader left')))
    const signal = AbortSignal.any([this.#stopping.signal, cut.signal])
    const holdsLease = () => this.#node.isAlive
    const work = job.run_id === null && cause.via !== 'read'
      ? this.#startInTurn(job, cause)
      : processJob(this.#context, { job, ...cause, holdsLease, recorder: this.#recorder, signal })`,
    ],
    [
      'jobs/worker/record-check.ts',
      'const isPlanned = job.run_id !== null &&',
      'const isPlanned = job.run_id === "none" &&',
    ],
  ),
  bug('watched-not-checked', 'an open stream does not make its jobs be checked', [
    'jobs/worker/watch.ts',
    'await worker.checkForStream(id, signal)',
    '',
  ]),
  bug('list-not-checked', 'a page of the list shows its unfinished jobs as they are stored', [
    'jobs/api/list-routes.ts',
    '(await reconciler.refreshAll(stored.rows)) ? await findJobPage(db, list, page) : stored',
    'stored',
  ]),
  bug('history-counted', 'the tokens of earlier turns are counted again', [
    'jobs/output.ts',
    'messages.slice(messages.findLastIndex((message) => isFrom(HUMAN, message)) + 1)',
    'messages',
  ]),
  bug('lost-at-first-sight', 'a run that a replica does not know yet fails its job', [
    'jobs/runs/inspect.ts',
    "message: 'The runtime no longer knows the run', confirm: 'run_missing' }",
    "message: 'The runtime no longer knows the run' }",
  ]),
  bug('missing-at-first-sight', 'a state that lags fails a job whose output it does not show yet', [
    'jobs/settlement/verdict.ts',
    "return { ...outputMissing(type), confirm: state === null ? 'state_missing' : 'output_missing' }",
    'return outputMissing(type)',
  ]),
  bug('pause-at-first-sight', 'a state that lags pauses a job without its question, or with one that is answered', [
    'jobs/settlement/verdict.ts',
    "    : { kind: 'awaiting_input', interrupts, confirm: 'unfinished_step' }",
    "    : { kind: 'awaiting_input', interrupts }",
  ]),
  bug(
    'evidence-of-another-kind',
    'evidence of one kind confirms evidence of another kind, and an answer between them does not contradict it',
    [
      'jobs/settlement/settlement.ts',
      'if (job.awaiting_confirmation !== evidence) this.',
      'if (job.awaiting_confirmation === null) this.',
    ],
    [
      'jobs/settlement/settlement.ts',
      "return verdict.kind !== 'unclear' || evidence === 'run_missing' || evidence === 'thread_missing'",
      'return false',
    ],
  ),
  bug('cancelled-at-first-sight', 'a cancelled job ends although a replica only does not know its run yet', [
    'jobs/runs/inspect.ts',
    "return { kind: 'cancelled', confirm: 'run_missing' }",
    "return { kind: 'cancelled' }",
  ]),
  bug('error-text-differs', 'the same failure reads differently by callback and by check', [
    'runtime/read-answers.ts',
    "const ERROR_WORDS = ['message', 'error', 'name'] as const",
    "const ERROR_WORDS = ['error', 'message', 'name'] as const",
  ]),
  bug('rollback-fails', 'the callback of a run that was rolled back fails its job', [
    'jobs/settlement/verdict.ts',
    "case 'rollback':\n      return { kind: 'cancelled' }\n    case 'running':",
    "case 'rollback':\n      return { kind: 'failed', code: 'run_failed', message: 'The run was rolled back' }\n    case 'running':",
  ]),
  bug('backoff-without-cap', 'the pauses between checks grow to five hours', [
    'jobs/worker/record-check.ts',
    'maxMs: 5 * 60_000',
    'maxMs: 5 * 3_600_000',
  ]),
  bug('reads-delay-checks', 'clients that read a job and leave make its later checks rarer', [
    'jobs/worker/record-check.ts',
    'attemptsSince(startOf(job), atMs)',
    'job.check_attempts',
  ]),
  bug(
    'stale-run-settles',
    'the late end of an earlier run settles the resumed job',
    [
      'jobs/settlement/settlement.ts',
      'if (update.runSeq !== undefined && update.runSeq !== job.run_seq) return stale',
      '',
    ],
    [
      'jobs/settlement/settlement.ts',
      'if (update.runId !== null && job.run_id !== null && update.runId !== job.run_id) return stale',
      '',
    ],
  ),
  bug('input-rewritten', 'numbers in the input of a job are rounded', [
    'jobs/actions/jobs.ts',
    'input: input.text,\n      project_id',
    'input: JSON.stringify(JSON.parse(input.text)),\n      project_id',
  ]),
  bug('deadline-ignored', 'a run that never ends is checked for ever', [
    'jobs/worker/process-job.ts',
    'return isActive(observed) && isOverdue(context, job) ?',
    'return isActive(observed) && context.clock.now() < 0 ?',
  ]),
  bug('cancel-not-passed-on', 'a cancellation is not sent to the runtime', [
    'jobs/runs/inspect.ts',
    'if (run && job.cancel_requested_at !== null && !needsState(run.status)) {',
    'if (run && job.cancel_requested_at !== null && run.status === "nothing") {',
  ]),
  bug('next-check-forgotten', 'after a check without a result there is no next check', [
    'jobs/leases/lease-store.ts',
    'else r.next_at end',
    'else 9000000000000 end',
  ]),
  bug('no-backoff', 'the sweep checks every job every second', [
    'jobs/worker/record-check.ts',
    'const backedOffMs = atMs + backoffMs(CHECK_BACKOFF, attempt, random)',
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
    'const mentioned = payload.jobId === null ? onThread',
    'const mentioned = payload.jobId === null ? undefined',
  ]),
  bug(
    'credential-of-another-job',
    'the credential of one job is accepted for the run of another job',
    ['jobs/callbacks/match-callbacks.ts', 'const named = jobId === null ?', 'const named = jobId === null || true ?'],
    [
      'jobs/callbacks/match-callbacks.ts',
      'const wrongJob = newest !== undefined || (jobId !== null && (job?.id !== jobId || isOfOther))',
      'const wrongJob = false',
    ],
  ),
  bug('locks-in-two-orders', 'a bulk cancel locks its jobs one by one, in the order of the request', [
    'operations/bulk-actions.ts',
    'const locked = new Map((await settlement.lock(ids)).map((job) => [job.id, job]))',
    'const locked = new Map()\n  for (const id of ids) for (const job of await settlement.lock([id])) locked.set(id, job)',
  ]),
  bug('locked-job-adopted', 'a job that another transaction has locked looks unknown, and its run gets a second job', [
    'jobs/callbacks/match-callbacks.ts',
    "locks === 'wait' || missing.length === 0 ? [] : findThreadsOf(tx, missing),",
    '[],',
  ]),
  bug('token-cached-past-expiry', 'a cached token is accepted after its expiry', [
    'auth/token-cache.ts',
    'if (isKeyInSet && this.#clock.calendar() < entry.principal.expiresAtMs) return',
    'if (isKeyInSet) return',
  ]),
  bug('signature-not-checked', 'the signature of a token is not checked', [
    'auth/token-verifier.ts',
    "if (!isSigned) throw new TokenFault('signature', 'The signature does not match')",
    '',
  ]),
  bug('idempotency-answer-not-stored', 'a request repeated with the same Idempotency-Key creates a second job', [
    'http/idempotency.ts',
    'if (earlier && earlier.expires_at > now) {',
    'if (earlier && earlier.expires_at < 0) {',
  ]),
  bug('counter-not-in-sync', 'the usage counter of a month is overwritten instead of increased', [
    'usage/usage-store.ts',
    'runs = usage_counters.runs + excluded.runs,',
    'runs = excluded.runs,',
  ]),
  bug('claim-leaves-usage', 'a job that gets its owner late leaves the usage without an owner', [
    'jobs/actions/jobs.ts',
    'const usage = job.finished_at === null ? [] : [usageOf(job, createdBy)]',
    'const usage = job.finished_at === null ? [] : []',
  ]),
  bug(
    'threshold-told-twice',
    'the threshold of a limit is announced again with each job that ends after it',
    [
      'usage/thresholds.ts',
      'const isNew = (threshold: number) => threshold > (announced.get(subject) ?? 0)',
      'const isNew = (threshold: number) => threshold > 0 || announced.has(subject)',
    ],
    [
      'usage/thresholds.ts',
      'cause: `usage:${period}:${threshold}:${subject}`,',
      'cause: `usage:${atMs}:${threshold}:${subject}`,',
    ],
  ),
  bug('limit-forgets-unfinished', 'a start is accepted beyond the limit of runs, because only ended jobs count', [
    'jobs/uncommon-jobs.ts',
    'return { runs: unfinished + ended, tokens }',
    'return { runs: ended, tokens }',
  ]),
  bug(
    'stream-repeats',
    'a resumed stream repeats the last event (cursor off by one)',
    ['events/event-store.ts', 'sql`seq > ${after}`', 'sql`seq >= ${after}`'],
    ['events/event-streams.ts', 'if (event.seq <= this.#position) return', ''],
  ),
  bug('stream-skips', 'the history of a stream ends one event too early', [
    'events/event-store.ts',
    'sql`seq <= ${upTo}`',
    'sql`seq < ${upTo}`',
  ]),
  bug('push-marked-before-sent', 'a push is marked as sent before it is sent', [
    'push/outbox/outbox.ts',
    'const outcome = await attemptDelivery(',
    `const early = this.#judge.markOf({ delivery, outcome: { kind: 'sent', messageId: 'm' }, leaseToken })
    await this.#options.db.transaction((tx) => this.mark(tx, { marks: [early], atMs: clock.now() }))
    const outcome = await attemptDelivery(`,
  ]),
  bug('push-retry-forgotten', 'a push is not retried', [
    'push/outbox/delivery-judge.ts',
    'const isTooLate = retryAtMs >= giveUpAt(delivery)',
    'const isTooLate = retryAtMs > 0',
  ]),
  bug('push-lease-ignored', 'two nodes send the same push', [
    'push/outbox/delivery-store.ts',
    ' and ${isUnleased(lease.nowMs)}',
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
  bug('earlier-turn-adopted', 'a turn whose start was not answered takes the run of an earlier turn', [
    'jobs/runs/extra-runs.ts',
    'metadata.job_id === job.id && metadata.run_seq === job.run_seq',
    'metadata.run_seq === job.run_seq',
  ]),
  bug('output-of-the-turn-before', 'a turn without an answer gets that of the turn before', [
    'jobs/output.ts',
    'const messages = isLaterTurn ? messagesOfTurn(values) : messagesIn(values)',
    'const messages = messagesIn(values)',
  ]),
  bug('turns-overlap', 'a conversation is continued while its last turn is unfinished', [
    'jobs/actions/conversation.ts',
    'if (unfinished.length === 0) return',
    "if (unfinished.length === 0 || onBusy === 'reject') return",
  ]),
  bug(
    'queued-turn-overlaps',
    'a turn that waits begins before the end of the turn before it',
    ['jobs/leases/turns.ts', '.filter((id) => next.has(id))', ''],
    ['jobs/leases/turns.ts', 'if (first?.id !== jobId) return', ''],
  ),
  bug('further-run-goes-on', 'a further run of a repeated start is noted, but not cancelled', [
    'jobs/runs/extra-runs.ts',
    'if (!isActiveRun(run) || (await isCancelled(runtime, run, signal))) stopped.push(run)',
    'stopped.push(run)',
  ]),
  bug(
    'late-run-followed',
    'a job follows the run of an earlier attempt although the attempt was repeated',
    [
      'jobs/runs/start.ts',
      'runs.find((run) => attemptOf(run) >= fromAttempt && !extra.has(run.runId))',
      'runs.find((run) => !extra.has(run.runId))',
    ],
    [
      'jobs/callbacks/match-callbacks.ts',
      'return threadId !== job.thread_id || attempt < job.start_attempts',
      'return false',
    ],
  ),
  bug('pin-forgotten', 'the next turn of a pinned conversation names no checkpoint', [
    'jobs/actions/jobs.ts',
    'const isPinned = turn?.thread.is_pinned === 1',
    'const isPinned = false',
  ]),
  bug('block-not-read', 'a node learns only of the blocks that it makes itself', [
    'users/user-states.ts',
    'run: () => this.refresh(),',
    'run: async () => {},',
  ]),
  bug('block-audited-again', 'a repeated block is recorded again', [
    'users/change-block.ts',
    'if (outcome.changed) await recordAudit(',
    'await recordAudit(',
  ]),
  bug('audit-outside-transaction', 'the audit entry of a block is stored after the commit of the block', [
    'users/change-block.ts',
    `if (outcome.changed) await recordAudit(tx, context, { by, action, object: { kind: 'user', id: sub } })
    return outcome
  })`,
    `return { ...outcome, entry: { by, action, object: { kind: 'user', id: sub } } }
  }).then(async (outcome) => {
    if (outcome.changed) await db.transaction((tx) => recordAudit(tx, context, outcome.entry))
    return outcome
  })`,
  ]),
  bug('retry-not-audited', 'a job that an operator repeats has no audit entry', [
    'jobs/actions/retry-job.ts',
    'await recordAudit(tx, jobContext, { ...retried, after: { job_id: created.job.id } })',
    '',
  ]),
  bug('operation-ends-with-its-node', 'an operation whose node crashed is never continued', [
    'operations/operation-store.ts',
    ' or ${isStopped(sql`lease_node`, nowMs)})`',
    ')`',
  ]),
  bug(
    'operation-repeats-items',
    'the position of an operation is stored after the commit of its items',
    [
      'operations/operation-runner.ts',
      'const { progress, afterCommit } = await action.transact(',
      'const { items, results, afterCommit } = await action.transact(',
    ],
    [
      'operations/operation-runner.ts',
      'progress: await this.#record(tx, running, items, results, clock.now()),',
      'items,\n        results,',
    ],
    [
      'operations/operation-runner.ts',
      'for (const call of afterCommit) call()',
      `const progress = await db.transaction((tx) => this.#record(tx, running, items, results, clock.now()))
    for (const call of afterCommit) call()`,
    ],
  ),
  bug('step-believed-at-once', "a step of the database's clock changes the service's time at once", [
    'db/nodes/node.ts',
    'if (Math.abs(differenceMs) <= STEP_MS) {\n      this.#elderBeats = null\n      this.#follow(reading)',
    'if (Math.abs(differenceMs) >= 0) {\n      this.#follow(reading, { mayJump: true })',
  ]),
  bug('deleted-job-comes-back', 'a late callback of a deleted job creates a job for its run', [
    'jobs/callbacks/match-callbacks.ts',
    'findDeleted(tx, unknown),',
    'new Map(),',
  ]),
  bug('deletion-leaves-callbacks', 'the callbacks of a deleted job stay', [
    'jobs/retention/delete-jobs.ts',
    '  { deleteSome: deleteCallbacksOf, limit: 50 },\n',
    '',
  ]),
  bug('erased-job-comes-back', 'a late callback stores its body for a job that was erased with its user', [
    'jobs/callbacks/match-callbacks.ts',
    '    if (job && job.erased_at !== null) return { callback, deletedJobId: job.id }\n',
    '',
  ]),
  bug(
    'expiry-lost-by-restart',
    'only the process that saw the pause knows when its question expires',
    [
      'jobs/settlement/settlement.ts',
      'const PAUSED_CHECK_MS = 3_600_000',
      'const PAUSED_CHECK_MS = 3_600_000\nconst known = new WeakMap()',
    ],
    [
      'jobs/settlement/settlement.ts',
      '    this.#checks.push(newCheck({ ...job, start_attempts: 0, lease_token: null, lease_until: null }))',
      `    this.#checks.push(newCheck({ ...job, start_attempts: 0, lease_token: null, lease_until: null }))
    known.set(this.#context.ids, (known.get(this.#context.ids) ?? new Set()).add(job.id))`,
    ],
    [
      'jobs/settlement/settlement.ts',
      'if (job.answer_by !== null && atMs >= job.answer_by) {',
      'if (job.answer_by !== null && atMs >= job.answer_by && known.get(this.#context.ids)?.has(jobId)) {',
    ],
    // Otherwise each round would check the job again, which takes the simulation long.
    [
      'jobs/worker/record-check.ts',
      'question_at ?? Number.POSITIVE_INFINITY,',
      'question_at !== null && question_at > atMs ? question_at : Number.POSITIVE_INFINITY,',
    ],
  ),
  bug(
    'delayed-job-started-twice',
    'the node that accepted a delayed job starts it at its time, and so does the sweep',
    [
      'jobs/actions/jobs.ts',
      '      afterCommit.push(() => this.#wakeSweep())\n',
      `      const startItself = async () => {
        await clock.sleep((not_before ?? 0) - clock.calendar())
        const { token, untilMs } = this.#worker.newLease()
        this.#worker.startFresh({ ...job, start_attempts: 1, lease_token: token, lease_until: untilMs }, { isPinned })
      }
      if (not_before !== null) afterCommit.push(() => void startItself())
`,
    ],
  ),
  bug('webhook-marked-before-sent', 'a webhook is marked as sent when it is leased', [
    'webhooks/delivery-store.ts',
    '  if (taken.length === 0) return []\n',
    `  if (taken.length === 0) return []
  await db.query(sql\`
    update webhook_deliveries set state = 'sent', next_attempt_at = null where lease_token = \${lease.token}\`)
`,
  ]),
  bug(
    'webhook-to-disabled',
    'the retries of a disabled endpoint go on',
    [
      'webhooks/delivery-store.ts',
      'from webhook_endpoints e where disabled_at is null order by id',
      'from webhook_endpoints e order by id',
    ],
    [
      'webhooks/delivery-store.ts',
      'join webhook_endpoints e on e.id = d.endpoint_id and e.disabled_at is null\n    where d.lease_token',
      'join webhook_endpoints e on e.id = d.endpoint_id\n    where d.lease_token',
    ],
  ),
  bug('webhook-waits-for-others', 'a round waits for the slowest receiver before the next one leases', [
    'deliveries/delivery-worker.ts',
    'for (const delivery of due) void this.#deliverInSpan(delivery, lease)',
    `const sending = due.map((delivery) => this.#deliverInSpan(delivery, lease))
    if (this.#channel.name === 'webhook') await Promise.all(sending)`,
  ]),
  bug('webhook-id-of-attempt', 'each attempt has a webhook-id of its own', [
    'webhooks/webhook-channel.ts',
    '      id: String(event.seq),\n',
    '      id: `${event.seq}-${clock.now()}`,\n',
  ]),
  bug(
    'webhook-cursor-first',
    'the cursor moves in a transaction of its own, before the deliveries are written',
    ['webhooks/event-fanout.ts', '    await insertDeliveries(tx, { deliveries, atMs: clock.now() })\n', ''],
    [
      'webhooks/event-fanout.ts',
      '    return { isPage, missing }\n  })\n',
      `    return { isPage, missing, deliveries }
  })
  if (read) await db.transaction((tx) => insertDeliveries(tx, { deliveries: read.deliveries, atMs: clock.now() }))
`,
    ],
  ),
]
