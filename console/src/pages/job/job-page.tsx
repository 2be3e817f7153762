import { Link } from 'wouter-preact'
import { useOperator } from '../../api/operator.ts'
import { useResource } from '../../api/queries.ts'
import { hasEnded, type Job } from '../../api/types.ts'
import { Badge } from '../../ui/badge.tsx'
import { JsonView } from '../../ui/json-view.tsx'
import { PageHead } from '../../ui/page-head.tsx'
import { Loaded } from '../../ui/states.tsx'
import { duration, Time } from '../../ui/time.tsx'
import { Owner } from '../people/owner.tsx'
import { AnswerForm } from './answer-form.tsx'
import { Conversation } from './conversation.tsx'
import { JobActions } from './job-actions.tsx'
import { JobCallbacks } from './job-callbacks.tsx'
import { JobPushes } from './job-pushes.tsx'
import { LiveOutput } from './live-output.tsx'
import { JobTimeline } from './timeline.tsx'

export function JobPage({ params: { id } }: { params: { id: string } }) {
  const { operator } = useOperator()
  const query = useResource<Job>(`/jobs/${id}`, { refreshMs: 5_000 })
  const job = query.data
  return (
    <Loaded query={query}>
      {job && (
        <>
          <PageHead title={`${job.type} job`}>
            <JobActions job={job} />
          </PageHead>
          {job.status === 'awaiting_input' && operator.mayAct && <AnswerForm job={job} />}
          {job.error && (
            <p class="notice bad">
              <strong>{job.error.code}</strong>: {job.error.message}
            </p>
          )}
          <div class="columns">
            <Facts job={job} />
            <JobTimeline job={job} />
          </div>
          {!hasEnded(job.status) && <LiveOutput job={job} />}
          <div class="columns">
            <JsonView title="Input" value={job.input} />
            <JsonView title="Output" value={job.output} />
          </div>
          {job.configurable && <JsonView title="Configuration" value={job.configurable} />}
          <Conversation job={job} />
          <JobCallbacks jobId={job.id} />
          <JobPushes jobId={job.id} />
        </>
      )}
    </Loaded>
  )
}

function Facts({ job }: { job: Job }) {
  const { reconcile } = job
  return (
    <section class="card" aria-label="Facts">
      <dl class="facts">
        <dt>Status</dt>
        <dd>
          <Badge state={job.status} />
          {job.settled_by && <span class="muted"> noticed by {job.settled_by}</span>}
        </dd>
        <dt>Job</dt>
        <dd>
          <code>{job.id}</code>
        </dd>
        <dt>Owner</dt>
        <dd>
          <Owner sub={job.created_by} />
        </dd>
        {job.actor && (
          <>
            <dt>Asked by</dt>
            <dd>
              <Owner sub={job.actor} />
            </dd>
          </>
        )}
        <dt>Created</dt>
        <dd>
          <Time at={job.created_at} isExact />
        </dd>
        <dt>Duration</dt>
        <dd>{job.finished_at ? duration(Date.parse(job.finished_at) - Date.parse(job.created_at)) : 'not ended'}</dd>
        {job.run_at && (
          <>
            <dt>Planned start</dt>
            <dd>
              <Time at={job.run_at} isExact />
            </dd>
          </>
        )}
        {job.answer_by && (
          <>
            <dt>Answer expires</dt>
            <dd>
              <Time at={job.answer_by} isExact />
            </dd>
          </>
        )}
        {job.queued_behind && (
          <>
            <dt>Waits for</dt>
            <dd>
              <Link href={`/jobs/${job.queued_behind}`}>{job.queued_behind}</Link>
            </dd>
          </>
        )}
        {job.retry_of && (
          <>
            <dt>Retry of</dt>
            <dd>
              <Link href={`/jobs/${job.retry_of}`}>{job.retry_of}</Link>
            </dd>
          </>
        )}
        {job.retried_as && (
          <>
            <dt>Retried as</dt>
            <dd>
              <Link href={`/jobs/${job.retried_as}`}>{job.retried_as}</Link>
            </dd>
          </>
        )}
        <dt>Thread</dt>
        <dd>
          <Link href={`/jobs?thread_id=${job.thread_id}`}>
            <code>{job.thread_id}</code>
          </Link>
        </dd>
        <dt>Run</dt>
        <dd>{job.run_id ? <code>{job.run_id}</code> : 'not started'}</dd>
        <dt>Traces</dt>
        <dd>{[job.trace_id, job.tracer_trace_id].filter((trace) => trace !== null).join(', ') || '–'}</dd>
        <dt>Last check</dt>
        <dd>
          <Time at={reconcile.checked_at} isExact />
          {reconcile.last_error && <span class="muted">: {reconcile.last_error}</span>}
        </dd>
        {reconcile.next_at && (
          <>
            <dt>Next check</dt>
            <dd>
              <Time at={reconcile.next_at} isExact />
            </dd>
          </>
        )}
      </dl>
    </section>
  )
}
