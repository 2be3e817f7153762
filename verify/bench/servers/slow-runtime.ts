import { createServer } from 'node:http'

/** An agent runtime whose every run has succeeded. It answers each question after `LATENCY_MS`. */
const { PORT, LATENCY_MS } = process.env
const PATH = /^\/threads\/(?<thread>[^/]+)\/(?:runs\/(?<run>[^/?]+)|state)/

const server = createServer((request, response) => {
  const { thread, run } = PATH.exec(request.url ?? '')?.groups ?? {}
  const answer = (body: object) => {
    const text = JSON.stringify(body)
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }).end(text)
  }
  if (thread === undefined) return answer({ ok: true })
  request.resume()
  // The ids of `seed.ts`: a thread has one run, with the same digits at its end.
  const metadata = { graph_id: 'draft', run_id: thread.replace('-9000-', '-8000-') }
  const values = { report: { title: 'Quarterly report', text: 'x'.repeat(200) } }
  setTimeout(
    () =>
      answer(
        run === undefined
          ? { values, next: [], tasks: [], metadata, checkpoint: {}, interrupts: [] }
          : { run_id: run, thread_id: thread, assistant_id: 'draft', status: 'success', metadata, kwargs: {} },
      ),
    Number(LATENCY_MS),
  )
})

server.listen(Number(PORT), '127.0.0.1')
