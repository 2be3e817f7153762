import { Link } from 'wouter-preact'
import { useResource } from '../api/queries.ts'
import { hasEnded, STATUSES } from '../api/types.ts'
import { Badge } from '../ui/badge.tsx'
import { Chart, type Series } from '../ui/chart.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { Elapsed } from '../ui/time.tsx'
import { useUrlFilters } from '../ui/url-filters.ts'
import { DependencyDetail } from './dependency-detail.tsx'
import { countOf } from './jobs/bulk-dialog.tsx'
import { Owner } from './people/owner.tsx'
import { useReadiness } from './readiness.ts'

interface Bucket {
  at: string
  ends: { status: string; settled_by: string | null; count: number }[]
  callback_miss_ratio: number | null
  time_to_truth_ms: { p50: number; p99: number } | null
  pushes: Record<string, number>
}

interface Stats {
  bucket_seconds: number
  buckets: Bucket[]
  now: {
    unfinished: Record<string, number>
    oldest_unfinished_at: string | null
    pushes_waiting: number
  }
}

const MAX_CALLERS = 10
const WINDOWS = ['1h', '24h', '7d'] as const
/** What noticed the ends whose callback did not come first. */
const MISSED = [
  ['read', 'noticed by a read'],
  ['sweep', 'noticed by the sweep'],
] as const
const NOTICED: [via: string, color: string][] = [
  ['callback', '--good'],
  ['read', '--live'],
  ['sweep', '--wait'],
]

const PUSH_COLORS: Record<string, string> = {
  sent: '--good',
  pending: '--wait',
  failed: '--bad',
  expired: '--bad',
  disabled: '--muted',
  no_credentials: '--live',
}

export function OverviewPage() {
  const { filters, hrefWith } = useUrlFilters(['window'])
  const window = filters.window ?? '1h'
  const stats = useResource<Stats>('/v1/stats', { query: { window }, refreshMs: 5_000 })
  return (
    <>
      <PageHead title="Overview">
        <nav class="tabs" aria-label="Time span">
          {WINDOWS.map((one) => (
            <Link key={one} href={hrefWith({ window: one })} aria-current={one === window ? 'true' : undefined}>
              {one}
            </Link>
          ))}
        </nav>
      </PageHead>
      <Loaded query={stats}>
        {stats.data && (
          <>
            <Now stats={stats.data} />
            <Charts stats={stats.data} />
          </>
        )}
      </Loaded>
      <TopCallers />
      <Dependencies />
    </>
  )
}

function Now({ stats: { now, buckets } }: { stats: Stats }) {
  // The filter is exclusive, and the bucket begins with its time.
  const before = new Date(Date.parse(buckets[0]?.at ?? '') - 1)
  const ends = buckets.flatMap((bucket) => bucket.ends)
  const count = (fits: (end: Bucket['ends'][number]) => boolean) =>
    ends.filter(fits).reduce((sum, end) => sum + end.count, 0)
  return (
    <ul class="figures">
      {STATUSES.filter((status) => !hasEnded(status)).map((status) => (
        <Figure key={status} label={status.replaceAll('_', ' ')} href={`/jobs?status=${status}`}>
          {atMost(now.unfinished[status] ?? 0)}
        </Figure>
      ))}
      {STATUSES.filter(hasEnded).map((status) => (
        <Figure key={status} label={status} href={`/jobs?status=${status}&finished_after=${before.toISOString()}`}>
          {count((end) => end.status === status).toLocaleString()}
        </Figure>
      ))}
      {MISSED.map(([via, label]) => (
        <Figure key={via} label={label} href={`/jobs?settled_by=${via}&finished_after=${before.toISOString()}`}>
          {count((end) => end.settled_by === via).toLocaleString()}
        </Figure>
      ))}
      <Figure label="pushes waiting" href="/push?state=pending">
        {atMost(now.pushes_waiting)}
      </Figure>
      <Figure label="oldest unfinished job">
        <Elapsed since={now.oldest_unfinished_at} />
      </Figure>
    </ul>
  )
}

/** The service stops counting one above this number. */
const MAX_COUNTED = 10_000

function atMost(count: number): string {
  return count > MAX_COUNTED ? `${MAX_COUNTED.toLocaleString()}+` : count.toLocaleString()
}

function Figure(props: { label: string; href?: string; children: preact.ComponentChildren }) {
  const { label, href, children } = props
  return (
    <li class="card figure">
      <span class="muted">{href ? <Link href={href}>{label}</Link> : label}</span>
      <strong>{children}</strong>
    </li>
  )
}

function Charts({ stats: { buckets, bucket_seconds: seconds } }: { stats: Stats }) {
  const times = buckets.map(({ at }) => Date.parse(at) / 1_000)
  const perMinute = (bucket: Bucket, via: string) =>
    (bucket.ends.filter(({ settled_by }) => settled_by === via).reduce((sum, end) => sum + end.count, 0) * 60) / seconds
  const ends: Series[] = NOTICED.map(([via, color]) => ({
    label: via,
    color,
    values: buckets.map((bucket) => perMinute(bucket, via)),
  }))
  const truth: Series[] = [
    { label: 'p50', color: '--live', values: buckets.map(({ time_to_truth_ms: truth }) => truth?.p50 ?? null) },
    { label: 'p99', color: '--wait', values: buckets.map(({ time_to_truth_ms: truth }) => truth?.p99 ?? null) },
  ]
  const missed: Series[] = [
    {
      label: 'missed',
      color: '--bad',
      values: buckets.map(({ callback_miss_ratio: ratio }) => (ratio === null ? null : Math.round(ratio * 1_000) / 10)),
    },
  ]
  const states = [...new Set(buckets.flatMap(({ pushes }) => Object.keys(pushes)))].sort()
  const pushes: Series[] = states.map((state) => ({
    label: state,
    color: PUSH_COLORS[state] ?? '--muted',
    values: buckets.map((bucket) => ((bucket.pushes[state] ?? 0) * 60) / seconds),
  }))
  return (
    <div class="columns">
      <Chart title="Ended jobs per minute, by what noticed the end" times={times} series={ends} stacked />
      <Chart title="Time from a run's end to the stored result" times={times} series={truth} unit=" ms" />
      <Chart title="Callbacks missed" times={times} series={missed} unit=" %" />
      {pushes.length > 0 && <Chart title="Pushes per minute, by state" times={times} series={pushes} stacked />}
    </div>
  )
}

interface Caller {
  caller: string
  tier: string | null
  requests: number
  refused: number
  jobs: number
}

interface Callers {
  since: string
  data: Caller[]
  /** The counts that may be higher. */
  at_least: string[]
}

/** Who sent the most in the last hour: the first place to look in a flood. */
function TopCallers() {
  const callers = useResource<Callers>('/v1/callers', { refreshMs: 10_000 })
  const isLeast = (kind: 'requests' | 'jobs') => callers.data?.at_least.includes(kind)
  return (
    <section class="stack" aria-label="Top callers">
      <h2>Top callers of the last hour</h2>
      <p class="muted">Requests are those to the node that answered this page. Jobs are those of all nodes.</p>
      <Loaded query={callers}>
        <DataTable
          label="Callers, most requests first"
          empty="No caller sent a request"
          rows={(callers.data?.data ?? [])
            .slice(0, MAX_CALLERS)
            .map((one) => ({ ...one, id: `${one.tier} ${one.caller}` }))}
          columns={[
            {
              title: 'Caller',
              render: ({ caller, tier }) =>
                tier === 'unauthenticated' ? <code>{caller}</code> : <Owner sub={caller} />,
            },
            { title: 'Tier', render: ({ tier }) => tier ?? '–', wide: true },
            {
              title: 'Requests',
              render: ({ requests }) => countOf(requests, 'request', isLeast('requests')),
              numeric: true,
            },
            {
              title: 'Refused (429)',
              render: ({ refused }) =>
                refused > 0 ? (
                  <Badge state={`${refused.toLocaleString()}${isLeast('requests') ? '+' : ''} refused`} tone="bad" />
                ) : (
                  '0 refused'
                ),
              numeric: true,
            },
            {
              title: 'Jobs',
              numeric: true,
              render: ({ caller, jobs, tier }) =>
                tier === 'unauthenticated' ? (
                  '–'
                ) : (
                  <Link
                    href={`/jobs?${new URLSearchParams({ created_by: caller, created_after: callers.data?.since ?? '' })}`}
                  >
                    {countOf(jobs, 'job', isLeast('jobs'))}
                  </Link>
                ),
            },
          ]}
        />
      </Loaded>
    </section>
  )
}

function Dependencies() {
  const { data: readiness } = useReadiness()
  if (!readiness) return null
  return (
    <section class="stack" aria-label="Dependencies">
      <h2>Dependencies</h2>
      <ul class="figures">
        {Object.entries(readiness.checks).map(([name, { state, detail }]) => (
          <li key={name} class="card figure">
            <span>
              {name} <Badge state={state} />
            </span>
            {detail && (
              <span class="muted">
                <DependencyDetail detail={detail} />
              </span>
            )}
          </li>
        ))}
      </ul>
    </section>
  )
}
