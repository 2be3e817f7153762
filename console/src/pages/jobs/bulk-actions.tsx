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
  const target = ids.size > 0 ? { ids: [...ids] } : { filter: filters }
  const bulk = useOperation({ action: '', ...target }, onStarted)
  const hasTarget = ids.size > 0 || Object.keys(filters).length > 0
  const asked = bulk.asked?.action as ActionName | undefined
  return (
    <>
      {hasTarget && (
        <section class="actions" aria-label="Actions on many jobs">
          <span class="muted">{ids.size > 0 ? `${ids.size} selected` : 'All that fit these filters'}</span>
          {(Object.keys(ACTIONS) as ActionName[]).map((action) => (
            <Button key={action} onClick={() => bulk.count({ action })}>
              {ACTIONS[action].title}
            </Button>
          ))}
        </section>
      )}
      {bulk.started !== null && <OperationProgress id={bulk.started} />}
      {asked && (
        <Dialog
          title={`${ACTIONS[asked].title}: ${bulk.total === undefined ? 'counting' : `${bulk.total.toLocaleString()} ${bulk.total === 1 ? 'job' : 'jobs'}`}`}
          confirm={{
            label: ACTIONS[asked].title,
            kind: asked === 'cancel' ? 'danger' : 'primary',
            busy: bulk.isBusy || !bulk.total,
            onConfirm: bulk.start,
          }}
          onClose={bulk.close}
        >
          {bulk.error === null ? <p>{ACTIONS[asked].does}</p> : <p class="notice bad">{bulk.error}</p>}
        </Dialog>
      )}
    </>
  )
}
