import { DEFAULT_PROVIDER } from '../../src/push/provider-registry.ts'
import type { PushMessage, PushProvider, PushSender, PushVerdict } from '../../src/push/push-provider.ts'

type Script = (message: PushMessage) => PushVerdict | Promise<PushVerdict>

/** A second provider, for tests with devices of two. */
export const MEMORY_PROVIDER: PushProvider = {
  name: 'memory',
  limits: { payloadBytes: 1_000, tokenBytes: 100, ttlSeconds: 3_600, idleDeviceMs: {} },
  payloadBytesOf: (content) => Buffer.byteLength(JSON.stringify(content.body)),
  validate: (content) =>
    MEMORY_PROVIDER.payloadBytesOf(content) <= 1_000 ? null : { path: '', problem: 'is over 1000 bytes' },
}

/** A sender that gives the verdicts of a test's script and records the messages. */
export class ScriptedSender implements PushSender {
  readonly provider: PushProvider
  readonly given: PushMessage[] = []
  /** Why the credentials are refused. */
  credentialsFault: string | null = null
  readonly #closed = new AbortController()
  #script: Script
  #count = 0

  constructor(script: Script = () => this.sent(), provider: PushProvider = DEFAULT_PROVIDER) {
    this.#script = script
    this.provider = provider
  }

  get isClosed(): boolean {
    return this.#closed.signal.aborted
  }

  answer(script: Script): void {
    this.#script = script
  }

  /** A good answer, with a message id of its own. */
  sent(): PushVerdict {
    this.#count += 1
    return { kind: 'sent', messageId: `projects/test/messages/${this.#count}` }
  }

  async send(message: PushMessage, signal: AbortSignal): Promise<PushVerdict> {
    const ended = AbortSignal.any([signal, this.#closed.signal])
    if (ended.aborted) return ABORTED
    if (this.credentialsFault !== null) return { kind: 'halt', reason: this.credentialsFault }
    this.given.push(message)
    const aborted = new Promise<PushVerdict>((resolve) => {
      ended.addEventListener('abort', () => resolve(ABORTED))
    })
    return Promise.race([this.#script(message), aborted])
  }

  async checkCredentials(): Promise<string | null> {
    return this.credentialsFault
  }

  async close(): Promise<void> {
    this.#closed.abort()
  }
}

const ABORTED: PushVerdict = { kind: 'retry', reason: 'aborted', afterMs: null }
