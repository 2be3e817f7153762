import { useQueryClient } from '@tanstack/preact-query'
import type { ComponentChildren } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import { useOperator } from '../../api/operator.ts'
import { useAction, useList, useResource } from '../../api/queries.ts'
import type { Operation, OperationFailure } from '../../api/types.ts'
import { Button } from '../../ui/button.tsx'

export interface OperationRequest {
  action: string
  filter?: Record<string, string | boolean>
  ids?: readonly string[]
  again?: boolean
}

const COUNTING_MS = 10_000
/** The failures that the operation itself has, and those of a further page. */
const SHOWN_AT_ONCE = 100

/** Counts the objects of an operation, and starts it when the operator confirms. */
export function useOperation(onStarted: () => void = () => {}) {
  const [asked, setAsked] = useState<OperationRequest | null>(null)
  const [started, setStarted] = useState<string | null>(null)
  const counting = useAction<Operation>(() => null)
  const starting = useAction<Operation>(({ id }) => {
    setStarted(id)
    setAsked(null)
    onStarted()
    return null
  })
  const path = '/v1/operations'
  return {
    asked,
    started,
    total: counting.data?.total,
    retried: counting.data?.retried ?? 0,
    error: counting.error?.message ?? null,
    isBusy: counting.isPending || starting.isPending,
    count: (wanted: OperationRequest) => {
      setAsked(wanted)
      counting.mutate({ method: 'POST', path, body: { ...wanted, dry_run: true }, timeoutMs: COUNTING_MS })
    },
    start: (changes: Partial<OperationRequest> = {}) =>
      starting.mutate({ method: 'POST', path, body: { ...asked, ...changes } }),
    close: () => setAsked(null),
  }
}

const RUNS = new Set(['pending', 'running'])

/** The progress of an operation, with a button to stop it. An erasure cannot be stopped. */
export function OperationProgress({ id }: { id: string }) {
  const [endedId, setEndedId] = useState<string | null>(null)
  const { data } = useResource<Operation>(`/v1/operations/${id}`, endedId === id ? {} : { refreshMs: 1_000 })
  const queries = useQueryClient()
  const hasEnded = data !== undefined && !RUNS.has(data.state)
  // It has changed jobs, callbacks or deliveries that are on the screen.
  useEffect(() => {
    if (!hasEnded) return
    setEndedId(id)
    void queries.invalidateQueries()
  }, [id, hasEnded, queries])
  const { operator } = useOperator()
  const stop = useAction(() => 'The operation was stopped')
  if (!data) return null
  return (
    <div class="notice" role="status">
      <label class="field">
        <span>
          {data.action}: {data.done.toLocaleString()} of {data.total.toLocaleString()}
          {data.failed > 0 && `, ${data.failed.toLocaleString()} failed`}
          {data.skipped ? `, ${data.skipped.toLocaleString()} skipped` : ''}
          {RUNS.has(data.state) ? '' : ` (${data.state})`}
        </span>
        <progress max={Math.max(1, data.total)} value={data.done + data.failed + (data.skipped ?? 0)} />
      </label>
      <Reasons
        title={`Why ${data.failed === 1 ? 'it' : 'they'} failed`}
        items={data.failures?.map(({ id: item, error }) => [item, error])}
        more={data.failed > (data.failures?.length ?? 0) ? <AllFailures id={id} /> : null}
      />
      <Reasons
        title={`Why ${data.skipped === 1 ? 'it was' : 'they were'} skipped`}
        items={data.skips?.map(({ id: item, reason }) => [item, reason])}
      />
      {operator.mayAct && RUNS.has(data.state) && data.action !== 'erase' && (
        <Button kind="quiet" onClick={() => stop.mutate({ method: 'POST', path: `/v1/operations/${id}/cancel` })}>
          Stop
        </Button>
      )}
    </div>
  )
}

interface ReasonsProps {
  title: string
  items: [id: string, reason: string][] | undefined
  more?: ComponentChildren
}

function Reasons({ title, items = [], more }: ReasonsProps) {
  if (items.length === 0) return null
  return (
    <details>
      <summary>{title}</summary>
      <ReasonList items={items} />
      {more}
    </details>
  )
}

function ReasonList({ items }: { items: [id: string, reason: string][] }) {
  return (
    <ul>
      {items.map(([id, reason]) => (
        <li key={id}>
          <code>{id}</code>: {reason}
        </li>
      ))}
    </ul>
  )
}

/** The failures after those that the operation itself shows, page by page. */
function AllFailures({ id }: { id: string }) {
  const [isAsked, setAsked] = useState(false)
  return isAsked ? (
    <FurtherFailures id={id} />
  ) : (
    <Button kind="quiet" onClick={() => setAsked(true)}>
      Show all failures
    </Button>
  )
}

function FurtherFailures({ id }: { id: string }) {
  const { items, hasNextPage, isFetchingNextPage, fetchNextPage } = useList<OperationFailure>(
    `/v1/operations/${id}/failures`,
    {
      query: { limit: SHOWN_AT_ONCE },
    },
  )
  // The operation itself has shown the first page.
  const needsMore = items.length === SHOWN_AT_ONCE && hasNextPage
  useEffect(() => {
    if (needsMore) void fetchNextPage()
  }, [needsMore, fetchNextPage])
  return (
    <>
      <ReasonList items={items.slice(SHOWN_AT_ONCE).map(({ id: item, error }) => [item, error])} />
      {hasNextPage && (
        <Button kind="quiet" busy={isFetchingNextPage} onClick={() => void fetchNextPage()}>
          Show more
        </Button>
      )}
    </>
  )
}
