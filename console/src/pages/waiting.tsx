import { Link } from 'wouter-preact'
import { useOperator } from '../api/operator.ts'
import { useList } from '../api/queries.ts'
import type { Job } from '../api/types.ts'
import { Button } from '../ui/button.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Empty, Loaded } from '../ui/states.tsx'
import { Elapsed, Time } from '../ui/time.tsx'
import { AnswerForm, questionText } from './job/answer-form.tsx'

/** Every job that awaits an answer, with its question and a form. */
export function WaitingPage() {
  const { operator } = useOperator()
  const jobs = useList<Job>('/jobs', { query: { status: 'awaiting_input', limit: 20 }, refreshMs: 5_000 })
  return (
    <>
      <PageHead title="Waiting for answers" />
      <Loaded query={jobs}>
        {jobs.items.length === 0 && <Empty title="No job waits for an answer" />}
        {jobs.items.map((job) => (
          <section key={job.id} class="stack" aria-label={`Question of ${job.id}`}>
            <p>
              <Link href={`/jobs/${job.id}`}>
                {job.type} <code>{job.id}</code>
              </Link>{' '}
              <span class="muted">
                waiting for <Elapsed since={job.updated_at} />
                {job.answer_by && (
                  <>
                    , expires <Time at={job.answer_by} />
                  </>
                )}
              </span>
            </p>
            {operator.mayAct ? (
              <AnswerForm job={job} />
            ) : (
              <p class="card">{(job.interrupts ?? []).map(({ value }) => questionText(value)).join(' ')}</p>
            )}
          </section>
        ))}
        {jobs.hasNextPage && (
          <Button busy={jobs.isFetchingNextPage} onClick={() => void jobs.fetchNextPage()}>
            Load more
          </Button>
        )}
      </Loaded>
    </>
  )
}
