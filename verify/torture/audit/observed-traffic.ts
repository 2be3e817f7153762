import { isJsonObject, type Json } from '../../../src/core/json.ts'
import type { ProxiedRequest, ProxiedResponse } from '../cluster/fault-proxy.ts'

/** A callback that was answered with a 2xx: it must not be lost. */
export interface AcceptedCallback {
  runId: string
  node: string
  atMs: number
}

/** A message that the push provider accepted. */
export interface SentPush {
  node: string
  device: string
  jobId: string
  tag: string
  status: string
  atMs: number
}

export interface Fault {
  atMs: number
  /** When the node or server was back. */
  untilMs: number
  what: string
  /** The name of a node, or `postgres`, or `redis`. */
  target: string
}

/** The traffic that the proxies saw. The audit checks it against the database and the runtime. */
export class ObservedTraffic {
  readonly accepted: AcceptedCallback[] = []
  readonly pushes: SentPush[] = []
  readonly faults: Fault[] = []
  readonly notes: string[] = []
  connectionsCut = 0

  note(text: string): void {
    this.notes.push(`${new Date().toISOString()} ${text}`)
  }

  acceptCallback({ node, body }: ProxiedRequest): void {
    const run = parse(body)
    if (isJsonObject(run)) this.accepted.push({ runId: String(run.run_id), node, atMs: Date.now() })
  }

  addPush({ node, body }: ProxiedRequest): void {
    const request = parse(body)
    const message = isJsonObject(request) && isJsonObject(request.message) ? request.message : {}
    const android = isJsonObject(message.android) ? message.android : {}
    const notification = isJsonObject(android.notification) ? android.notification : {}
    const data = isJsonObject(message.data) ? message.data : {}
    this.pushes.push({
      node,
      device: String(message.token),
      jobId: String(data.job_id),
      tag: String(notification.tag),
      status: String(data.status),
      atMs: Date.now(),
    })
  }
}

export function isAccepted({ status }: ProxiedResponse): boolean {
  return status >= 200 && status < 300
}

function parse(body: Buffer): Json {
  try {
    return JSON.parse(body.toString('utf8')) as Json
  } catch {
    return null
  }
}
