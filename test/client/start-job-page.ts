import { createElement as h, StrictMode, useState } from 'react'
import { createRoot } from 'react-dom/client'
import { createClient } from '../../client/src/client.ts'
import { useStartJob } from '../../client/src/react/hooks.ts'

/** A page of test/client/react.test.ts: the test decides in which order the service answers the starts. */
const answers: ((response: Response) => void)[] = []
const api = createClient({
  url: location.origin,
  token: 'a-token',
  fetch: () => new Promise((resolve) => answers.push(resolve)),
})

function answer(call: number): void {
  answers[call]?.(Response.json({ id: `job_${call}`, status: 'processing' }, { status: 202 }))
}

function fail(call: number): void {
  const error = { code: 'invalid_request', message: `Call ${call} failed`, requestId: 'r' }
  answers[call]?.(Response.json({ error }, { status: 400 }))
}

function Page() {
  const { start, job, error, isPending } = useStartJob(api, 'agent')
  const [ended, setEnded] = useState(0)
  const startOne = () => {
    void start({})
      .catch(() => {})
      .then(() => setEnded((before) => before + 1))
  }
  const button = (id: string, onClick: () => void) => h('button', { type: 'button', id, key: id, onClick }, id)
  return h(
    'main',
    null,
    button('start', startOne),
    ...[0, 1, 2, 3, 4].flatMap((call) => [
      button(`answer-${call}`, () => answer(call)),
      button(`fail-${call}`, () => fail(call)),
    ]),
    h('output', { id: 'state' }, `${job?.id} ${error?.message} ${isPending ? 'pending' : 'idle'}, ${ended} ended`),
  )
}

createRoot(document.body.appendChild(document.createElement('div'))).render(h(StrictMode, null, h(Page)))
