import { useList } from '../../api/queries.ts'
import { Badge } from '../../ui/badge.tsx'
import { Loaded } from '../../ui/states.tsx'
import { DataTable } from '../../ui/table.tsx'
import { Time } from '../../ui/time.tsx'

export interface DeliveryRow {
  id: string
  state: string
  device_id: string
  /** Null when the device was deleted. */
  user: string | null
  platform: string | null
  job_id: string | null
  attempts: number
  last_error: string | null
  updated_at: string
}

/** The pushes about a job, one for each device. */
export function JobPushes({ jobId }: { jobId: string }) {
  const deliveries = useList<DeliveryRow>('/v1/deliveries', { query: { job: jobId }, refreshMs: 10_000 })
  return (
    <section class="stack" aria-label="Pushes">
      <h2>Pushes</h2>
      <Loaded query={deliveries}>
        <DataTable
          label="Pushes about this job"
          empty="No device was notified"
          rows={deliveries.items}
          columns={[
            { title: 'State', render: ({ state }) => <Badge state={state} /> },
            { title: 'Device', render: ({ device_id }) => <code>{device_id}</code> },
            { title: 'Error', render: ({ last_error }) => last_error ?? '–', wide: true },
            { title: 'Changed', render: ({ updated_at }) => <Time at={updated_at} /> },
          ]}
        />
      </Loaded>
    </section>
  )
}
