import { createElement as h, StrictMode, useState } from 'react'
import { createRoot } from 'react-dom/client'
import { createClient } from '../../client/src/client.ts'
import { useEvents, useJob, useJobs, useLive, useStartJob } from '../../client/src/react/hooks.ts'

/** The page of test/client/react.test.ts: every hook, in strict mode, in a real browser. */
const { url, token } = JSON.parse(decodeURIComponent(location.hash.slice(1))) as { url: string; token: string }
const api = createClient({ url, token })

function JobView({ id }: { id: string }) {
  const { job, error } = useJob(api, id)
  const live = useLive(api, id)
  return h(
    'section',
    null,
    h('output', { id: 'status' }, job?.status ?? 'loading'),
    h('output', { id: 'output' }, JSON.stringify(job?.output ?? null)),
    h('output', { id: 'live' }, live.text),
    h('output', { id: 'live-status' }, live.status ?? 'running'),
    h('output', { id: 'error' }, error?.message ?? ''),
  )
}

function Page() {
  const { start, job, error, isPending } = useStartJob(api, 'agent')
  const { jobs } = useJobs(api)
  const [events, setEvents] = useState<string[]>([])
  const [isShown, setIsShown] = useState(true)
  useEvents(api, ({ type }) => setEvents((before) => [...before, type]))
  const input = { messages: [{ role: 'user', content: 'Hi' }], sandbox: { say: 'one two three', duration_ms: 1_000 } }
  return h(
    'main',
    null,
    h(
      'button',
      { type: 'button', id: 'start', disabled: isPending, onClick: () => void start(input).catch(() => {}) },
      'Start',
    ),
    h('button', { type: 'button', id: 'toggle', onClick: () => setIsShown((before) => !before) }, 'Toggle'),
    h('output', { id: 'jobs' }, jobs.map(({ type, status }) => `${type} ${status}`).join()),
    h('output', { id: 'events' }, events.join()),
    h('output', { id: 'start-error' }, error?.message ?? ''),
    job && isShown ? h(JobView, { id: job.id }) : null,
    isShown ? h('div', { id: 'twice' }, job ? h(JobView, { id: job.id }) : null) : null,
  )
}

createRoot(document.body.appendChild(document.createElement('div'))).render(h(StrictMode, null, h(Page)))
