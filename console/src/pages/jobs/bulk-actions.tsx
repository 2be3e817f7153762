import { Button } from '../../ui/button.tsx'
import { BULK_ACTIONS, type BulkActionName, BulkDialog, requestOf } from './bulk-dialog.tsx'
import { OperationProgress, useOperation } from './operation.tsx'

interface BulkActionsProps {
  filters: Record<string, string>
  ids: ReadonlySet<string>
  onStarted: () => void
}

/** Acts on the selected jobs, or on all that fit the filters. The service counts them before the operator confirms. */
export function BulkActions({ filters, ids, onStarted }: BulkActionsProps) {
  const { retried, ...texts } = filters
  const filter = retried === undefined ? texts : { ...texts, retried: retried === 'true' }
  const target = ids.size > 0 ? { ids: [...ids] } : { filter }
  const bulk = useOperation(onStarted)
  const hasTarget = ids.size > 0 || Object.keys(filters).length > 0
  return (
    <>
      {hasTarget && (
        <section class="actions" aria-label="Actions on many jobs">
          <span class="muted">{ids.size > 0 ? `${ids.size} selected` : 'All that fit these filters'}</span>
          {(['retry', 'cancel', 'check'] as const).map((action) => (
            <Button key={action} onClick={() => bulk.count(requestOf(action, target))}>
              {BULK_ACTIONS[action].title}
            </Button>
          ))}
        </section>
      )}
      {bulk.started !== null && <OperationProgress id={bulk.started} />}
      {bulk.asked && <BulkDialog action={bulk.asked.action as BulkActionName} bulk={bulk} />}
    </>
  )
}
