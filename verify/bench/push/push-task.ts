import type { FcmCredentials } from '../../../src/push/fcm/fcm-assertion.ts'
import type { PushMessage } from '../../../src/push/push-provider.ts'

/** The address of the provider, sent by its process once it listens. */
export interface ProviderAddress {
  url: string
  tokenUrl: string
  /** The same server without TLS, for its counters. */
  plainUrl: string
  ca: string
  credentials: FcmCredentials
}

/** The work of one round: this many messages, each to another device, under one tag. */
export interface Task {
  way: 'outbox' | 'raw' | 'firebase-admin'
  messages: number
  tag: string
}

export interface Done {
  elapsedMs: number
  /** Processor time of the sending process; other load on the machine hardly changes it. */
  cpuMs: number
}

/** The content of every message; token and tag come from the round. */
export const CONTENT: Omit<PushMessage, 'token' | 'tag'> = {
  title: 'Your report is ready',
  body: 'The quarterly report on sales has 12 pages.',
  data: { job_id: 'job_01kq3v7m2x8n4r6t0w9y5z1abc', type: 'report', status: 'completed' },
  link: 'https://app.example.com/jobs/job_01kq3v7m2x8n4r6t0w9y5z1abc',
  priority: 'high',
  ttlSeconds: 86_400,
  dryRun: false,
}

/** A token with the length of a real one. */
export function deviceToken(n: number): string {
  return `device-${n}:${'APA91b'.repeat(22)}`
}
