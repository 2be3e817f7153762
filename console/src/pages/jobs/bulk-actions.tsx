import { useState } from 'preact/hooks'
import { Button } from '../../ui/button.tsx'
import { Dialog } from '../../ui/dialog.tsx'
import { OperationProgress, useOperation } from './operation.tsx'

const ACTIONS = {
  retry: { title: 'Retry', does: 'For each job, a new job with the same input starts.' },
  cancel: { title: 'Cancel', does: 'Each run is stopped, and its job ends as cancelled.' },
  check: { title: 'Check now', does: 'The service asks the runtime for the state of each run.' },
} as const
type ActionName = keyof typeof ACTIONS

interface BulkActionsProps {
  filters: Record<string, string>
  ids: ReadonlySet<string>
  onStarted: () => void
}

/** Acts on the selected jobs, or on all that fit the filters. The service counts them before the operator confirms. */
export function BulkActions({ filters, ids, onStarted }: BulkActionsProps) {
  const { retried: wasRetried, ...texts } = filters
  const filter = wasRetried === undefined ? texts : { ...texts, retried: wasRetried === 'true' }
  const target = ids.size > 0 ? { ids: [...ids] } : { filter }
  const bulk = useOperation({ action: '', ...target }, onStarted)
  const hasTarget = ids.size > 0 || Object.keys(filters).length > 0
  const asked = bulk.asked?.action as ActionName | undefined
  const [again, setAgain] = useState(false)
  const { retried } = bulk
  const total = bulk.total === undefined ? undefined : bulk.total + (again ? retried : 0)
  return (
    <>
      {hasTarget && (
        <section class="actions" aria-label="Actions on many jobs">
          <span class="muted">{ids.size > 0 ? `${ids.size} selected` : 'All that fit these filters'}</span>
          {(Object.keys(ACTIONS) as ActionName[]).map((action) => (
            <Button
              key={action}
              onClick={() => {
                setAgain(false)
                bulk.count({ action })
              }}
            >
              {ACTIONS[action].title}
            </Button>
          ))}
        </section>
      )}
      {bulk.started !== null && <OperationProgress id={bulk.started} />}
      {asked && (
        <Dialog
          title={`${ACTIONS[asked].title}: ${total === undefined ? (bulk.error === null ? 'counting' : 'not counted') : jobs(total)}`}
          confirm={{
            label: ACTIONS[asked].title,
            kind: asked === 'cancel' ? 'danger' : 'primary',
            busy: bulk.isBusy,
            disabled: !total,
            onConfirm: () => bulk.start(again ? { again } : {}),
          }}
          onClose={bulk.close}
        >
          {bulk.error === null ? <p>{ACTIONS[asked].does}</p> : <p class="notice bad">{bulk.error}</p>}
          {retried > 0 && (
            <>
              <p>
                {retried === 1 ? '1 job was' : `${retried.toLocaleString()} jobs were`} retried already
                {!again && `, and ${retried === 1 ? 'is' : 'are'} left out`}.
              </p>
              <label class="actions">
                <input type="checkbox" checked={again} onChange={(event) => setAgain(event.currentTarget.checked)} />
                Retry {retried === 1 ? 'it' : 'them'} again
              </label>
            </>
          )}
        </Dialog>
      )}
    </>
  )
}

function jobs(count: number): string {
  return `${count.toLocaleString()} ${count === 1 ? 'job' : 'jobs'}`
}
