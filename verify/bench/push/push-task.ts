import type { FcmCredentials } from '../../../src/push/fcm/fcm-assertion.ts'
import type { PushMessage } from '../../../src/push/push-provider.ts'

/** Where the provider is, as its process says once it listens. */
export interface ProviderAddress {
  url: string
  tokenUrl: string
  /** The same server without TLS, for its counters. */
  plainUrl: string
  ca: string
  credentials: FcmCredentials
}

/** What a contestant is asked for: this many messages, each to a device of its own, under one tag. */
export interface Task {
  way: 'outbox' | 'raw' | 'firebase-admin'
  messages: number
  tag: string
}

export interface Done {
  elapsedMs: number
  /** Processor time of the contestant's process; it hardly feels what else the machine does. */
  cpuMs: number
}

/** What everybody sends; token and tag are the round's. */
export const CONTENT: Omit<PushMessage, 'token' | 'tag'> = {
  title: 'Your report is ready',
  body: 'The quarterly report on sales has 12 pages.',
  data: { job_id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc', type: 'report', status: 'completed' },
  link: 'https://app.example.com/jobs/job_01kq3v7m2x8n4r6t0w9y5z1abc',
  priority: 'high',
  ttlSeconds: 86_400,
  dryRun: false,
}

/** As long as a real one. */
export function deviceToken(n: number): string {
  return `device-${n}:${'APA91b'.repeat(22)}`
}
