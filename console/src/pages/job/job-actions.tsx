import { useState } from 'preact/hooks'
import { Link, useLocation } from 'wouter-preact'
import { useOperator } from '../../api/operator.ts'
import { isFinal, useAction } from '../../api/queries.ts'
import { hasEnded, type Job } from '../../api/types.ts'
import { Button } from '../../ui/button.tsx'
import { CopyButton } from '../../ui/copy-button.tsx'
import { Dialog } from '../../ui/dialog.tsx'
import { useIsDeleted } from '../../ui/states.tsx'

type Question = 'cancel' | 'retry' | 'delete'

const QUESTIONS: Record<Question, { title: string; does: string; label: string; danger: boolean }> = {
  cancel: {
    title: 'Cancel this job?',
    does: 'The run is stopped, and the job ends as cancelled.',
    label: 'Cancel the job',
    danger: true,
  },
  retry: {
    title: 'Retry this job?',
    does: 'A new job starts with the same input and owner.',
    label: 'Retry',
    danger: false,
  },
  delete: {
    title: 'Delete this job?',
    does: 'Its input, output, callbacks and history are deleted for good.',
    label: 'Delete',
    danger: true,
  },
}

/** The actions on one job. An operator who may only read sees none. */
export function JobActions({ job }: { job: Job }) {
  const { operator } = useOperator()
  const [asked, setAsked] = useState<Question | null>(null)
  const [, navigate] = useLocation()
  const isOver = hasEnded(job.status)
  const check = useAction<Job>(({ status }) => `The runtime was asked: ${status.replaceAll('_', ' ')}`)
  const cancel = useAction(() => 'Cancellation was requested')
  const retry = useAction<Job>(({ id }) => {
    navigate(`/jobs/${id}`)
    return 'The new job was started'
  })
  const remove = useAction(() => {
    navigate('/jobs')
    return 'The job was deleted'
  })
  // Only one action runs at a time.
  const isBusy = [check, cancel, retry, remove].some(({ isPending }) => isPending)
  const path = `/jobs/${job.id}`
  // A retry without an answer may be the one that the job names. Sent again as it was, it gets its first answer.
  const isUnanswered = retry.error !== null && !isFinal(retry.error)
  const again = job.retried_as !== null && !isUnanswered
  const run = {
    cancel: () => cancel.mutate({ method: 'POST', path: `${path}/cancel` }),
    retry: () => retry.mutate({ method: 'POST', path: `${path}/retry`, ...(again && { body: { again } }) }),
    delete: () => remove.mutate({ method: 'DELETE', path }),
  }
  const isDeleted = useIsDeleted()
  if (isDeleted) return null
  const curl = () => `curl -s ${location.origin}${path} -H "Authorization: Bearer $TOKEN"`
  return (
    <>
      <CopyButton label="Copy as curl" text={curl}>
        Copy as curl
      </CopyButton>
      {operator.mayAct && !isOver && (
        <>
          <Button busy={isBusy} onClick={() => check.mutate({ method: 'POST', path: `${path}/check` })}>
            Check now
          </Button>
          <Button busy={isBusy} onClick={() => setAsked('cancel')}>
            Cancel
          </Button>
        </>
      )}
      {operator.mayAct && isOver && (
        <>
          <Button busy={isBusy} onClick={() => setAsked('retry')}>
            Retry
          </Button>
          <Button busy={isBusy} onClick={() => setAsked('delete')}>
            Delete
          </Button>
        </>
      )}
      {asked !== null && (
        <Dialog
          title={QUESTIONS[asked].title}
          confirm={{
            label: QUESTIONS[asked].label,
            kind: QUESTIONS[asked].danger ? 'danger' : 'primary',
            onConfirm: () => {
              run[asked]()
              setAsked(null)
            },
          }}
          onClose={() => setAsked(null)}
        >
          <p>{QUESTIONS[asked].does}</p>
          {asked === 'retry' && again && (
            <p class="notice">
              It was retried already, as <Link href={`/jobs/${job.retried_as}`}>{job.retried_as}</Link>.
            </p>
          )}
        </Dialog>
      )}
    </>
  )
}
