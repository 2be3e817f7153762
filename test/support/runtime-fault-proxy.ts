import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after } from 'node:test'

/** A moment in the talk with the runtime: before it hears a request, or after it did and before it is heard. */
export interface Step {
  when: 'before' | 'after'
  method: string
  path: RegExp
}

export interface RuntimeGate {
  url: string
  /** The nth thread that is made is held at the nth of these; what belongs to any other passes. */
  holdThreadsAt(steps: readonly Step[]): void
  /** How many are being held. */
  readonly held: number
  /** What is held is lost, and from now on everything passes. */
  open(): void
}

/** Stands between the service and its runtime, and stops the talk at a moment a test names. */
export async function startRuntimeGate(runtimeUrl: string): Promise<RuntimeGate> {
  let plan: readonly Step[] = []
  const stepOf = new Map<string, Step | undefined>()
  const held = new Set<ServerResponse>()

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
    if (holds('before', request, threadId)) return void held.add(response)
    const answer = await fetch(`${runtimeUrl}${request.url}`, {
      method: request.method ?? 'GET',
      headers: { 'content-type': 'application/json' },
      ...(body.length > 0 ? { body } : {}),
    })
    const text = await answer.text()
    if (holds('after', request, threadId)) return void held.add(response)
    response.writeHead(answer.status, { 'content-type': answer.headers.get('content-type') ?? '' }).end(text)
  }

  const server = createServer((request, response) => {
    // A service that was killed in the middle of its request is what this is for.
    serve(request, response).catch(() => response.destroy())
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    holdThreadsAt: (steps) => {
      plan = steps
    },
    get held() {
      return held.size
    },
    open: () => {
      plan = []
      stepOf.clear()
      for (const response of held) response.destroy()
      held.clear()
    },
  }
}

function threadOf({ url = '' }: IncomingMessage, body: Buffer): string {
  const named = /^\/threads\/([^/?]+)/.exec(url)?.[1]
  return named ?? (JSON.parse(body.toString() || '{}') as { thread_id?: string }).thread_id ?? ''
}
