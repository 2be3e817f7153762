import type { SecureContext } from 'node:tls'
import type { Clock } from '../../core/clock.ts'
import type { Log } from '../../core/log.ts'
import type { PushMessage, PushSender, PushVerdict } from '../push-message.ts'
import { AccessTokens, type TokenOutcome } from './fcm-access-tokens.ts'
import type { FcmCredentials } from './fcm-assertion.ts'
import { type Attempt, Attempts } from './fcm-attempts.ts'
import { FcmHttp1 } from './fcm-http1.ts'
import { buildFcmMessage } from './fcm-message.ts'
import { FcmPool } from './fcm-pool.ts'
import { type FcmAnswer, type FcmTransport, reasonOf, trustAlso } from './fcm-transport.ts'
import { judgeAnswer, refusesBearer } from './fcm-verdict.ts'

const MAX_SOCKETS = 100
const MAX_REQUESTS = 10_000

export interface FcmSenderOptions {
  credentials: FcmCredentials
  /** Plain http is spoken as HTTP/1.1; https as what the provider chooses, HTTP/2 first. */
  apiUrl: string
  tokenUrl: string
  clock: Clock
  log: Log
  /** A certificate in PEM form, trusted beside those the process trusts anyway. */
  ca?: string
  maxSessions?: number
  /** For one message: token, connection, waiting and answer together. */
  timeoutMs?: number
}

export interface FcmState {
  /** Open HTTP/2 connections. */
  sessions: number
  inFlight: number
  waiting: number
  /** Why nothing can be delivered, as of the last answer. */
  fault: string | null
}

export type FcmSender = PushSender & { state(): FcmState }

/** Sends one message per call and says what became of it. It owns connections and access token, and repeats nothing. */
export function createFcmSender(options: FcmSenderOptions): FcmSender {
  const { credentials, apiUrl, tokenUrl, clock, log, ca, timeoutMs = 15_000 } = options
  const trust = ca === undefined ? null : trustAlso(ca)
  const transport = createTransport(options, trust)
  const attempts = new Attempts({ clock, timeoutMs, awaited: 'answer' })
  const tokens = new AccessTokens({ credentials, tokenUrl, trust, clock, log })
  const base = new URL(apiUrl).pathname.replace(/\/+$/, '')
  const path = `${base}/v1/projects/${encodeURIComponent(credentials.projectId)}/messages:send`
  let fault: string | null = null

  const deliver = async (message: PushMessage, attempt: Attempt): Promise<PushVerdict> => {
    const body = JSON.stringify(buildFcmMessage(message, clock.now()))
    const post = (token: string) =>
      transport.post({
        path,
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body,
        attempt,
      })
    const judge = (answer: FcmAnswer, token: string) =>
      judgeAnswer(answer, { nowMs: clock.now(), secrets: [message.token, token] })
    const first = await unlessStopped(tokens.get(), attempt)
    if ('failure' in first) return first.failure
    const answer = await post(first.token)
    if (!refusesBearer(answer)) return judge(answer, first.token)
    const second = await unlessStopped(tokens.replace(first.token), attempt)
    if ('failure' in second) return second.failure
    return judge(await post(second.token), second.token)
  }

  return {
    send: async (message, signal) => {
      try {
        const verdict = await attempts.run(signal, (attempt) => deliver(message, attempt))
        fault = verdict.kind === 'halt' ? verdict.reason : verdict.kind === 'retry' ? fault : null
        return verdict
      } catch (error) {
        return { kind: 'retry', reason: reasonOf(error), afterMs: null }
      }
    },
    prove: async () => {
      const outcome = await tokens.get()
      return 'failure' in outcome && outcome.failure.kind === 'halt' ? outcome.failure.reason : null
    },
    state: () => ({ ...transport.state(), fault }),
    close: async () => {
      await tokens.close()
      await transport.close()
    },
  }
}

function createTransport(options: FcmSenderOptions, trust: SecureContext | null): FcmTransport {
  const { apiUrl, clock, log, maxSessions = 4 } = options
  const url = new URL(apiUrl)
  if (url.protocol === 'http:') return new FcmHttp1({ url, trust, maxSockets: MAX_SOCKETS, maxRequests: MAX_REQUESTS })
  return new FcmPool({ url, trust, maxSessions, clock, log })
}

/** The exchange is everybody's and goes on; this message no longer waits for it. */
function unlessStopped(outcome: Promise<TokenOutcome>, attempt: Attempt): Promise<TokenOutcome> {
  return new Promise((resolve, reject) => {
    attempt.onStop(reject)
    outcome.then(resolve, reject)
  })
}
