import type { SecureContext } from 'node:tls'
import { SingleFlight } from '../../core/async/single-flight.ts'
import type { Clock } from '../../core/clock.ts'
import { reasonOf } from '../../core/errors.ts'
import type { Log } from '../../core/log.ts'
import { asStorableText } from '../../core/text.ts'
import { readRetryAfter } from '../../deliveries/retry-after.ts'
import type { PushVerdict } from '../push-provider.ts'
import { createAssertionSigner, type FcmCredentials } from './fcm-assertion.ts'
import { Attempts } from './fcm-attempts.ts'
import { NoHttp2Error } from './fcm-connect.ts'
import { FcmPool } from './fcm-pool.ts'
import { type FcmAnswer, parseAnswer } from './fcm-transport.ts'

const GRANT = 'urn:ietf:params:oauth:grant-type:jwt-bearer'
const TIMEOUT_MS = 10_000
const RENEW_BEFORE_MS = 5 * 60_000
const FAILURE_PAUSE_MS = 5_000
const MAX_REASON_CHARS = 200

interface AccessToken {
  value: string
  renewAtMs: number
  expiresAtMs: number
}

/** Why there is no access token: the verdict for every message that needs one. */
type Failure = Extract<PushVerdict, { kind: 'halt' | 'retry' }>
export type TokenOutcome = { token: string } | { failure: Failure }

interface FcmAccessTokensOptions {
  credentials: FcmCredentials
  tokenUrl: string
  /** Null: the certificates that the process trusts. */
  trust: SecureContext | null
  clock: Clock
  log: Log
}

/**
 * Provides the service account's access token. All waiting messages share one exchange. The token is renewed five minutes
 * before it ends, while the old one is still in use. A failed exchange is repeated after a pause: a few seconds, or as long
 * as the token endpoint demands.
 */
export class FcmAccessTokens {
  readonly #options: FcmAccessTokensOptions
  readonly #pool: FcmPool
  readonly #path: string
  readonly #sign: ((nowMs: number) => string) | null
  readonly #exchanges = new SingleFlight<'token', TokenOutcome>()
  readonly #attempts: Attempts
  readonly #closing = new AbortController()
  #current: AccessToken | null = null
  #failed: { failure: Failure; untilMs: number } | null = null

  constructor(options: FcmAccessTokensOptions) {
    this.#options = options
    const { credentials, tokenUrl, clock } = options
    this.#attempts = new Attempts({ clock, timeoutMs: TIMEOUT_MS, awaited: 'answer' })
    const url = new URL(tokenUrl)
    this.#path = `${url.pathname}${url.search}`
    this.#pool = new FcmPool({ ...options, url, maxSessions: 1 })
    this.#sign = createAssertionSigner(credentials, tokenUrl)
  }

  /** Never rejects. */
  async get(): Promise<TokenOutcome> {
    const current = this.#current
    const nowMs = this.#options.clock.now()
    if (current === null || nowMs >= current.expiresAtMs) return this.#renew()
    if (nowMs >= current.renewAtMs) void this.#renew()
    return { token: current.value }
  }

  /** Drops a token that the provider refused, unless another message has already replaced it. */
  replace(refused: string): Promise<TokenOutcome> {
    if (this.#current?.value === refused) this.#current = null
    return this.get()
  }

  async close(): Promise<void> {
    this.#closing.abort(new Error('the sender was closed'))
    await this.#pool.close()
  }

  async #renew(): Promise<TokenOutcome> {
    const { clock, log } = this.#options
    const pauseMs = (this.#failed?.untilMs ?? 0) - clock.now()
    if (this.#failed && pauseMs > 0) return { failure: stillFailing(this.#failed.failure, pauseMs) }
    return this.#exchanges.run('token', async () => {
      const outcome = await this.#exchange()
      if ('token' in outcome) {
        this.#failed = null
        log.debug({}, 'push.access_token_renewed')
      } else {
        const { failure } = outcome
        const askedMs = failure.kind === 'retry' ? (failure.afterMs ?? 0) : 0
        this.#failed = { failure, untilMs: clock.now() + Math.max(FAILURE_PAUSE_MS, askedMs) }
        log.warn({ kind: failure.kind, reason: failure.reason }, 'push.access_token_failed')
      }
      return outcome
    })
  }

  async #exchange(): Promise<TokenOutcome> {
    const { clock } = this.#options
    if (this.#sign === null) return halt('PUSH_PRIVATE_KEY is not an RSA private key in PEM form')
    const assertion = this.#sign(clock.calendar())
    try {
      return this.#read(await this.#ask(assertion), assertion)
    } catch (error) {
      const reason = `no access token: ${reasonOf(error)}`
      return error instanceof NoHttp2Error ? halt(reason) : retry(reason)
    }
  }

  #ask(assertion: string): Promise<FcmAnswer> {
    return this.#attempts.run(this.#closing.signal, (attempt) =>
      this.#pool.post({
        path: this.#path,
        headers: { accept: 'application/json', 'content-type': 'application/x-www-form-urlencoded' },
        body: new URLSearchParams({ grant_type: GRANT, assertion }).toString(),
        attempt,
      }),
    )
  }

  #read({ status, headers, body }: FcmAnswer, assertion: string): TokenOutcome {
    const { access_token: value, expires_in: seconds, error, error_description: why } = parseAnswer(body)
    if (status === 200 && typeof value === 'string' && value !== '' && typeof seconds === 'number' && seconds > 0) {
      this.#keep(value, seconds * 1000)
      return { token: value }
    }
    const words = [error, why].filter((word) => typeof word === 'string').join(': ')
    const said = words.replaceAll(assertion, '…')
    const reason = asStorableText(`${status}${said === '' ? '' : ` ${said}`}`, MAX_REASON_CHARS)
    const isRefusal = status >= 300 && status < 500 && status !== 408 && status !== 429
    if (isRefusal) return halt(`the push credentials are refused: ${reason}`)
    return retry(`no access token: ${reason}`, readRetryAfter(headers['retry-after'], this.#options.clock.calendar()))
  }

  #keep(value: string, lifetimeMs: number): void {
    const nowMs = this.#options.clock.now()
    // At most half of the lifetime: otherwise a token that lives only for minutes would be renewed for every message.
    const renewBeforeMs = Math.min(RENEW_BEFORE_MS, lifetimeMs / 2)
    this.#current = { value, renewAtMs: nowMs + lifetimeMs - renewBeforeMs, expiresAtMs: nowMs + lifetimeMs }
  }
}

function halt(reason: string): TokenOutcome {
  return { failure: { kind: 'halt', reason } }
}

function retry(reason: string, afterMs: number | null = null): TokenOutcome {
  return { failure: { kind: 'retry', reason, afterMs } }
}

/** The failure with the remaining part of its pause. */
function stillFailing(failure: Failure, pauseMs: number): Failure {
  if (failure.kind === 'halt' || failure.afterMs === null) return failure
  return { ...failure, afterMs: pauseMs }
}
