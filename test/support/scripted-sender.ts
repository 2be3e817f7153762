import { DEFAULT_PROVIDER } from '../../src/push/provider-registry.ts'
import type { PushMessage, PushProvider, PushSender, PushVerdict } from '../../src/push/push-provider.ts'

type Script = (message: PushMessage) => PushVerdict | Promise<PushVerdict>

/** A sender that gives the verdicts of a test's script and records the messages. */
export class ScriptedSender implements PushSender {
  readonly provider: PushProvider
  readonly given: PushMessage[] = []
  isClosed = false
  #script: Script
  #count = 0

  constructor(script: Script = () => this.sent(), provider: PushProvider = DEFAULT_PROVIDER) {
    this.#script = script
    this.provider = provider
  }

  answer(script: Script): void {
    this.#script = script
  }

  /** A good answer, with a message id of its own. */
  sent(): PushVerdict {
    this.#count += 1
    return { kind: 'sent', messageId: `projects/test/messages/${this.#count}` }
  }

  async send(message: PushMessage): Promise<PushVerdict> {
    this.given.push(message)
    return this.#script(message)
  }

  async checkCredentials(): Promise<string | null> {
    return null
  }

  async close(): Promise<void> {
    this.isClosed = true
  }
}
