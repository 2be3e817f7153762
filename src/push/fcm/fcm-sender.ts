import type { Clock } from '../../core/clock.ts'
import { reasonOf } from '../../core/errors.ts'
import type { Log } from '../../core/log.ts'
import type { PushMessage, PushSender, PushVerdict } from '../push-provider.ts'
import { FcmAccessTokens, type TokenOutcome } from './fcm-access-tokens.ts'
import type { FcmCredentials } from './fcm-assertion.ts'
import { type Attempt, Attempts } from './fcm-attempts.ts'
import { buildFcmMessage } from './fcm-message.ts'
import { FcmPool } from './fcm-pool.ts'
import { fcm } from './fcm-provider.ts'
import { type FcmAnswer, type TransportState, trustWith } from './fcm-transport.ts'
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

export interface FcmState extends TransportState {
  /** Why no message can be delivered, according to the last response; null if messages can be delivered. */
  fault: string | null
}

export type FcmSender = PushSender & { state(): FcmState }

/** Sends one message per call and returns its verdict. It holds the connections and the access token, and never retries. */
export function createFcmSender(options: FcmSenderOptions): FcmSender {
  const { credentials, clock, log, ca, maxSessions = 4, timeoutMs = 15_000 } = options
  const url = new URL(options.apiUrl ?? GOOGLE.apiUrl)
  const tokenUrl = options.tokenUrl ?? GOOGLE.tokenUrl
  const trust = ca === undefined ? null : trustWith(ca)
  const transport = new FcmPool({ url, trust, maxSessions, clock, log })
  const attempts = new Attempts({ clock, timeoutMs, awaited: 'answer' })
  const tokens = new FcmAccessTokens({ credentials, tokenUrl, trust, clock, log })
  const base = url.pathname.replace(/\/+$/, '')
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
    provider: fcm,
    send: async (message, signal) => {
      try {
        const verdict = await attempts.run(signal, (attempt) => deliver(message, attempt))
        fault = verdict.kind === 'halt' ? verdict.reason : verdict.kind === 'retry' ? fault : null
        return verdict
      } catch (error) {
        return { kind: 'retry', reason: reasonOf(error), afterMs: null }
      }
    },
    checkCredentials: async () => {
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

/** All messages share one token exchange. If this attempt is stopped, the exchange continues for the other messages. */
function unlessStopped(outcome: Promise<TokenOutcome>, attempt: Attempt): Promise<TokenOutcome> {
  return new Promise((resolve, reject) => {
    attempt.onStop(reject)
    outcome.then(resolve, reject)
  })
}
