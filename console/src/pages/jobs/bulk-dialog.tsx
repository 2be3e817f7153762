import { useState } from 'preact/hooks'
import { Dialog } from '../../ui/dialog.tsx'
import type { OperationRequest, useOperation } from './operation.tsx'

export const BULK_ACTIONS = {
  retry: { title: 'Retry', noun: 'job', does: 'For each job, a new job with the same input starts.' },
  cancel: { title: 'Cancel', noun: 'job', does: 'Each run is stopped, and its job ends as cancelled.' },
  check: { title: 'Check now', noun: 'job', does: 'The service asks the runtime for the state of each run.' },
  replay: {
    title: 'Replay',
    noun: 'callback',
    does: 'The service processes each callback again. Jobs that have ended do not change.',
  },
} as const
export type BulkActionName = keyof typeof BULK_ACTIONS

/** A retry always says whether it takes jobs that were retried already: only those of a list that shows nothing else. */
export function requestOf(action: BulkActionName, target: Pick<OperationRequest, 'filter' | 'ids'>): OperationRequest {
  return { action, ...target, ...(action === 'retry' && { again: target.filter?.retried === true }) }
}

/**
 * Asks before an action on many jobs or callbacks, with their number. A retry leaves out the jobs that were retried already,
 * and says how many they are.
 */
export function BulkDialog({ action, bulk }: { action: BulkActionName; bulk: ReturnType<typeof useOperation> }) {
  const [again, setAgain] = useState(false)
  const { title, noun, does } = BULK_ACTIONS[action]
  const { retried } = bulk
  const total = bulk.total === undefined ? undefined : bulk.total + (again ? retried : 0)
  const counted = total === undefined ? (bulk.error === null ? 'counting' : 'not counted') : countOf(total, noun)
  return (
    <Dialog
      title={`${title}: ${counted}`}
      confirm={{
        label: title,
        kind: action === 'cancel' ? 'danger' : 'primary',
        busy: bulk.isBusy,
        disabled: !total,
        onConfirm: () => bulk.start(again ? repeating(bulk.asked) : {}),
      }}
      onClose={bulk.close}
    >
      {bulk.error === null ? <p>{does}</p> : <p class="notice bad">{bulk.error}</p>}
      {retried > 0 && (
        <>
          <p>
            {countOf(retried, noun)} {retried === 1 ? 'was' : 'were'} retried already
            {!again && `, and ${retried === 1 ? 'is' : 'are'} left out`}.
          </p>
          {canRepeat(bulk.asked) && (
            <label class="actions">
              <input type="checkbox" checked={again} onChange={(event) => setAgain(event.currentTarget.checked)} />
              Retry {retried === 1 ? 'it' : 'them'} again
            </label>
          )}
        </>
      )}
    </Dialog>
  )
}

/** The filter without its `retried`, which leaves out the jobs that were retried already. */
function filterOfAll(asked: OperationRequest | null) {
  const { retried: _, ...filter } = asked?.filter ?? {}
  return filter
}

/** An operation needs ids or a filter, so a list without another filter cannot be repeated as a whole. */
function canRepeat(asked: OperationRequest | null): boolean {
  return asked?.filter === undefined || Object.keys(filterOfAll(asked)).length > 0
}

function repeating(asked: OperationRequest | null): Partial<OperationRequest> {
  return asked?.filter ? { again: true, filter: filterOfAll(asked) } : { again: true }
}

/** `isLeast`: there may be more. */
export function countOf(count: number, noun: string, isLeast = false): string {
  return `${count.toLocaleString()}${isLeast ? '+' : ''} ${noun}${count === 1 && !isLeast ? '' : 's'}`
}
