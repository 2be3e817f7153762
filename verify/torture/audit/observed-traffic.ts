import { isJsonObject, type Json } from '../../../src/core/json.ts'
import type { Answer, Passing } from '../cluster/fault-proxy.ts'

/** A callback that was answered with a 2xx: from here on it must not be lost. */
export interface AcceptedCallback {
  runId: string
  node: string
  atMs: number
}

/** A message the push provider took. */
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
  /** When it was over: the node or server was back. */
  untilMs: number
  what: string
  /** A node's name, or what all nodes share. */
  whom: string
}

/** All that was seen from outside, which the audit later holds against the database and the runtime. */
export class Records {
  readonly accepted: AcceptedCallback[] = []
  readonly pushes: SentPush[] = []
  readonly faults: Fault[] = []
  readonly notes: string[] = []
  connectionsCut = 0

  note(text: string): void {
    this.notes.push(`${new Date().toISOString()} ${text}`)
  }

  acceptCallback({ node, body }: Passing): void {
    const run = parse(body)
    if (isJsonObject(run)) this.accepted.push({ runId: String(run.run_id), node, atMs: Date.now() })
  }

  addPush({ node, body }: Passing): void {
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

export function isAccepted({ status }: Answer): boolean {
  return status >= 200 && status < 300
}

function parse(body: Buffer): Json {
  try {
    return JSON.parse(body.toString('utf8')) as Json
  } catch {
    return null
  }
}
