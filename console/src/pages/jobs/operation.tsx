import { useState } from 'preact/hooks'
import { useOperator } from '../../api/operator.ts'
import { useAction, useResource } from '../../api/queries.ts'
import type { Operation } from '../../api/types.ts'
import { Button } from '../../ui/button.tsx'

export interface OperationRequest {
  action: string
  filter?: Record<string, string | boolean>
  ids?: readonly string[]
  again?: boolean
}

const COUNTING_MS = 10_000

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
  const { data } = useResource<Operation>(`/v1/operations/${id}`, { refreshMs: 1_000 })
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

function Reasons({ title, items = [] }: { title: string; items: [id: string, reason: string][] | undefined }) {
  if (items.length === 0) return null
  return (
    <details>
      <summary>{title}</summary>
      <ul>
        {items.map(([id, reason]) => (
          <li key={id}>
            <code>{id}</code>: {reason}
          </li>
        ))}
      </ul>
    </details>
  )
}
