import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { atEnd } from './at-end.ts'

/** A moment of a call: before the runtime receives the request, or before the service receives the response. */
export interface Step {
  when: 'before' | 'after'
  method: string
  path: RegExp
}

export interface RuntimeFaultProxy {
  url: string
  /** Holds the calls of the nth thread at the nth of these steps. Other calls pass. */
  holdThreadsAt(steps: readonly Step[]): void
  /** How many calls are held. A call that was given up and repeated is one. */
  readonly held: number
  /** Breaks the held calls; from now on all calls pass. */
  open(): void
  /** From now on, starts of runs do not reach the runtime: their connections break, or they wait. Null: they pass. */
  keepStarts(how: 'broken' | 'waiting' | null): void
  /** How many starts are kept. */
  readonly kept: number
  /** Now the runtime gets the kept starts. Those that wait are answered. */
  forwardStarts(): Promise<void>
}

/** A proxy between the service and its runtime that holds calls at the steps a test names. */
export async function startRuntimeFaultProxy(runtimeUrl: string): Promise<RuntimeFaultProxy> {
  let plan: readonly Step[] = []
  const stepOf = new Map<string, Step | undefined>()
  const held = new Map<ServerResponse, string>()
  let keeps: 'broken' | 'waiting' | null = null
  let kept: (() => Promise<void>)[] = []

  const holds = (when: Step['when'], { method, url = '' }: IncomingMessage, threadId: string): boolean => {
    const step = stepOf.get(threadId)
    return step?.when === when && step.method === method && step.path.test(url)
  }
  const serve = async (request: IncomingMessage, response: ServerResponse) => {
    const chunks: Buffer[] = []
    for await (const chunk of request) chunks.push(chunk)
    const body = Buffer.concat(chunks)
    const threadId = threadOf(request, body)
    if (request.url === '/threads' && !stepOf.has(threadId)) stepOf.set(threadId, plan[stepOf.size])
    if (holds('before', request, threadId)) return void held.set(response, threadId)
    const forward = async () => {
      const answer = await fetch(`${runtimeUrl}${request.url}`, {
        method: request.method ?? 'GET',
        headers: { 'content-type': 'application/json' },
        ...(body.length > 0 ? { body } : {}),
      })
      const text = await answer.text()
      if (holds('after', request, threadId)) return void held.set(response, threadId)
      if (response.destroyed) return
      response.writeHead(answer.status, { 'content-type': answer.headers.get('content-type') ?? '' }).end(text)
    }
    if (keeps === null || request.method !== 'POST' || !request.url?.endsWith('/runs')) return forward()
    kept.push(forward)
    if (keeps === 'broken') response.destroy()
  }

  const server = createServer((request, response) => {
    // The service may be killed in the middle of its request.
    serve(request, response).catch(() => response.destroy())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  atEnd(() => {
    server.closeAllConnections()
    server.close()
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    holdThreadsAt: (steps) => {
      plan = steps
    },
    get held() {
      // The service may give up a call and repeat it. Two calls of one thread that both wait are counted as two.
      const waiting = Array.from(held.keys()).filter(({ destroyed }) => !destroyed)
      return Math.max(waiting.length, new Set(held.values()).size)
    },
    keepStarts: (how) => {
      keeps = how
    },
    get kept() {
      return kept.length
    },
    forwardStarts: async () => {
      const late = kept
      kept = []
      for (const forward of late) await forward()
    },
    open: () => {
      plan = []
      stepOf.clear()
      for (const response of held.keys()) response.destroy()
      held.clear()
    },
  }
}

function threadOf({ url = '' }: IncomingMessage, body: Buffer): string {
  const named = /^\/threads\/([^/?]+)/.exec(url)?.[1]
  return named ?? (JSON.parse(body.toString() || '{}') as { thread_id?: string }).thread_id ?? ''
}
