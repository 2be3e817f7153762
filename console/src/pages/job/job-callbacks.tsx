import { useState } from 'preact/hooks'
import { useList, useResource } from '../../api/queries.ts'
import { Badge } from '../../ui/badge.tsx'
import { Button } from '../../ui/button.tsx'
import { Dialog } from '../../ui/dialog.tsx'
import { JsonView } from '../../ui/json-view.tsx'
import { Loaded } from '../../ui/states.tsx'
import { DataTable } from '../../ui/table.tsx'
import { Time } from '../../ui/time.tsx'

export interface CallbackRow {
  id: string
  type: string
  job_id: string | null
  status: string
  outcome: string
  received_at: string
}

/** The callbacks of a job. */
export function JobCallbacks({ jobId }: { jobId: string }) {
  const callbacks = useList<CallbackRow>('/v1/callbacks', { query: { job_id: jobId }, refreshMs: 10_000 })
  const [shown, setShown] = useState<string | null>(null)
  return (
    <section class="stack" aria-label="Callbacks">
      <h2>Callbacks</h2>
      <Loaded query={callbacks}>
        <DataTable
          label="Callbacks of this job"
          empty="No callback arrived"
          rows={callbacks.items}
          columns={[
            { title: 'Outcome', render: ({ outcome }) => <Badge state={outcome} /> },
            { title: 'Run status', render: ({ status }) => status },
            { title: 'Received', render: ({ received_at }) => <Time at={received_at} /> },
            {
              title: 'Body',
              render: ({ id }) => (
                <Button kind="quiet" label={`Show the body of ${id}`} onClick={() => setShown(id)}>
                  Show
                </Button>
              ),
            },
          ]}
        />
      </Loaded>
      {shown !== null && <CallbackBody id={shown} onClose={() => setShown(null)} />}
    </section>
  )
}

export function CallbackBody({ id, onClose }: { id: string; onClose: () => void }) {
  const callback = useResource<{ body: unknown }>(`/v1/callbacks/${id}`)
  return (
    <Dialog title={id} onClose={onClose}>
      <Loaded query={callback}>
        <JsonView title="Body" value={callback.data?.body} />
      </Loaded>
    </Dialog>
  )
}
