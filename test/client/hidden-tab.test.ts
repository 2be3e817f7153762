import assert from 'node:assert/strict'
import { join } from 'node:path'
import { after, test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { type ApiClient, createClient } from '../../client/src/client.ts'
import { writeCodeOf } from '../support/doc-code.ts'
import { closeFetchConnections } from '../support/fetch-connections.ts'
import { startScriptedServer } from '../support/scripted-server.ts'
import { until } from '../support/until.ts'

interface Documented {
  followWhileVisible(
    api: ApiClient,
    options: { onEvent: (event: { id: string }) => void; onError: (error: unknown) => void },
  ): () => void
}

/** The part of a page's document that the code reads. */
class Tab extends EventTarget {
  hidden = false

  show(isVisible: boolean): void {
    this.hidden = !isVisible
    this.dispatchEvent(new Event('visibilitychange'))
  }
}

const folder = writeCodeOf('docs/client.md')
const { followWhileVisible }: Documented = await import(pathToFileURL(join(folder, 'follow-while-visible.js')).href)
after(closeFetchConnections)

function event(id: number): string {
  const body = { id: String(id), type: 'job.updated', created_at: '2026-01-01T00:00:00.000Z', data: {} }
  return `id: ${id}\nevent: job.updated\ndata: ${JSON.stringify(body)}\n\n`
}

test('the documented code closes the stream of a hidden tab and resumes after its last event', async () => {
  const tab = new Tab()
  Object.assign(globalThis, { document: tab })
  let open = 0
  const server = await startScriptedServer((response, { headers }) => {
    open += 1
    response.on('close', () => {
      open -= 1
    })
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    response.write(event(Number(headers['last-event-id'] ?? 0) + 1))
  })
  const seen: string[] = []
  const errors: unknown[] = []
  const stop = followWhileVisible(createClient({ url: server.url, token: 'a-token' }), {
    onEvent: ({ id }) => seen.push(id),
    onError: (error) => errors.push(error),
  })
  await until(() => seen.length === 1)
  tab.show(false)
  await until(() => open === 0)
  tab.show(true)
  await until(() => seen.length === 2)
  stop()
  await until(() => open === 0)
  assert.deepEqual(seen, ['1', '2'])
  assert.deepEqual(errors, [])
  assert.equal(server.requests.length, 2, 'a hidden tab opens no stream')
})
