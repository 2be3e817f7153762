import { useState } from 'preact/hooks'
import { useList } from '../../api/queries.ts'
import type { Job, TimelineEntry } from '../../api/types.ts'
import { Button } from '../../ui/button.tsx'
import { Loaded } from '../../ui/states.tsx'
import { duration, exactTime } from '../../ui/time.tsx'

/** The history of a job, from its creation to the push, on one time scale. */
export function JobTimeline({ job }: { job: Job }) {
  const [isLong, setLong] = useState(false)
  // A refresh reads every page again, so a long timeline is not refreshed.
  const entries = useList<TimelineEntry>(`/jobs/${job.id}/timeline`, {
    query: { limit: 100 },
    ...(isLong ? {} : { refreshMs: 5_000 }),
  })
  const loadMore = () => {
    setLong(true)
    void entries.fetchNextPage()
  }
  const startMs = Date.parse(job.created_at)
  const endMs = entries.items.reduce((latest, { last_at }) => Math.max(latest, Date.parse(last_at)), startMs + 1)
  const share = (at: string) => `${((Date.parse(at) - startMs) / (endMs - startMs)) * 100}%`
  return (
    <section class="card" aria-label="Timeline">
      <h2>Timeline</h2>
      <Loaded query={entries}>
        <ol class="waterfall">
          {entries.items.map((entry) => (
            <li key={entry.id}>
              <span class="when" title={exactTime(entry.at)}>
                +{duration(Math.max(0, Date.parse(entry.at) - startMs))}
              </span>
              <span class="what">{describe(entry)}</span>
              <span class="track" aria-hidden="true">
                <span
                  class={`mark ${entry.kind}`}
                  style={{
                    left: `min(${share(entry.at)}, 100% - 3px)`,
                    right: `max(100% - ${share(entry.last_at)} - 3px, 0px)`,
                  }}
                />
              </span>
            </li>
          ))}
        </ol>
        {entries.hasNextPage && (
          <Button busy={entries.isFetchingNextPage} onClick={loadMore}>
            Load more
          </Button>
        )}
      </Loaded>
    </section>
  )
}

function describe({ kind, via, detail, times }: TimelineEntry): string {
  const { from, to, error, outcome, status, state, found, run_id, request_trace_id, reason } = detail as Record<
    string,
    string | undefined
  >
  const more = times > 1 ? `, ${times} times` : ''
  const by = via === null ? '' : ` (${via})`
  if (kind === 'transition') return `${from} → ${to}${error ? `: ${error}` : ''}${by}`
  if (kind === 'callback') return `callback: ${outcome ?? status ?? ''}${by}${more}`
  if (kind === 'check' || kind === 'start') return `${kind}: ${error ?? found ?? 'asked'}${by}${more}`
  if (kind === 'delivery') return `push: ${state ?? status ?? ''}${more}`
  if (kind === 'created' && request_trace_id) return `created, trace ${request_trace_id}`
  if (kind === 'extra_run') return `extra run ${run_id}: a late start, not followed`
  if (kind === 'cancel_requested' && reason) return `cancelled by the service: ${reason.replaceAll('_', ' ')}`
  return `${kind.replaceAll('_', ' ')}${by}${more}`
}
