import { startAgentRuntime } from '../../../src/sandbox/agent-runtime/agent-runtime.ts'

export interface RuntimeAddress {
  url: string
}

/** When the callback of each job was sent, in milliseconds of the system's clock. */
export type CallbackTimes = Record<string, number>

let sentAtMs: CallbackTimes = {}

/** The sandbox's agent runtime in its own process, not on the event loop of the clients. */
const runtime = await startAgentRuntime({
  fetch: (url, init) => {
    const [, jobId] = /"job_id":"([^"]+)"/.exec(String(init?.body)) ?? []
    if (jobId !== undefined) sentAtMs[jobId] = performance.timeOrigin + performance.now()
    return fetch(url, init)
  },
})
runtime.setFaults({ pending_ms: 0, running_ms: Number(process.env.RUN_MS) })
process.on('message', () => {
  process.send?.(sentAtMs)
  sentAtMs = {}
})
process.send?.({ url: runtime.url } satisfies RuntimeAddress)
