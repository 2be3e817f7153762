import type { Clock } from '../../core/clock.ts'
import { reasonOf } from '../../core/errors.ts'
import type { Log } from '../../core/log.ts'
import type { PushMessage, PushSender, PushVerdict } from '../push-provider.ts'
import { FcmAccessTokens, type TokenOutcome } from './fcm-access-tokens.ts'
import type { FcmCredentials } from './fcm-assertion.ts'
import { type Attempt, Attempts } from './fcm-attempts.ts'
import { NoHttp2Error } from './fcm-connect.ts'
import { buildFcmMessage } from './fcm-message.ts'
import { FcmPool } from './fcm-pool.ts'
import { fcm } from './fcm-provider.ts'
import { type FcmAnswer, trustWith } from './fcm-transport.ts'
import { judgeAnswer, refusesBearer } from './fcm-verdict.ts'

export const GOOGLE = { apiUrl: 'https://fcm.googleapis.com', tokenUrl: 'https://oauth2.googleapis.com/token' }

export interface FcmSenderOptions {
  credentials: FcmCredentials
  /** Null: Google's own addresses. */
  apiUrl: string | null
  tokenUrl: string | null
  clock: Clock
  log: Log
  /** A certificate in PEM form, trusted in addition to those that the process trusts. */
  ca?: string
  maxSessions?: number
  /** The time for one message: access token, queue, connection and response together. */
  timeoutMs?: number
}

/** Sends one message per call and returns its verdict. It holds the connections and the access token, and never retries. */
export function createFcmSender(options: FcmSenderOptions): PushSender {
  const { credentials, clock, log, ca, maxSessions = 4, timeoutMs = 15_000 } = options
  const url = new URL(options.apiUrl ?? GOOGLE.apiUrl)
  const tokenUrl = options.tokenUrl ?? GOOGLE.tokenUrl
  const trust = ca === undefined ? null : trustWith(ca)
  const pool = new FcmPool({ url, trust, maxSessions, clock, log })
  const attempts = new Attempts({ clock, timeoutMs, awaited: 'answer' })
  const tokens = new FcmAccessTokens({ credentials, tokenUrl, trust, clock, log })
  const base = url.pathname.replace(/\/+$/, '')
  const path = `${base}/v1/projects/${encodeURIComponent(credentials.projectId)}/messages:send`

  const deliver = async (message: PushMessage, attempt: Attempt): Promise<PushVerdict> => {
    const body = JSON.stringify(buildFcmMessage(message, clock.calendar()))
    const post = (token: string) =>
      pool.post({
        path,
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
        body,
        attempt,
      })
    const judge = (answer: FcmAnswer, token: string) =>
      judgeAnswer(answer, { nowMs: clock.calendar(), secrets: [message.token, token] })
    const first = await unlessStopped(tokens.get(), attempt)
    if ('failure' in first) return first.failure
    const answer = await post(first.token)
    if (!refusesBearer(answer)) return judge(answer, first.token)
    const second = await unlessStopped(tokens.replace(first.token), attempt)
    if ('failure' in second) return second.failure
    return judge(await post(second.token), second.token)
  }

  return {
    provider: fcm,
    send: async (message, signal) => {
      try {
        return await attempts.run(signal, (attempt) => deliver(message, attempt))
      } catch (error) {
        const reason = reasonOf(error)
        return error instanceof NoHttp2Error ? { kind: 'halt', reason } : { kind: 'retry', reason, afterMs: null }
      }
    },
    checkCredentials: async () => {
      const outcome = await tokens.get()
      return 'failure' in outcome && outcome.failure.kind === 'halt' ? outcome.failure.reason : null
    },
    close: async () => {
      await tokens.close()
      await pool.close()
    },
  }
}

/** All messages share one token exchange. If this attempt is stopped, the exchange continues for the other messages. */
function unlessStopped(outcome: Promise<TokenOutcome>, attempt: Attempt): Promise<TokenOutcome> {
  return new Promise((resolve, reject) => {
    attempt.onStop(reject)
    outcome.then(resolve, reject)
  })
}
