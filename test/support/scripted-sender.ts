import type { PushMessage, PushSender, PushVerdict } from '../../src/push/push-message.ts'

type Script = (message: PushMessage) => PushVerdict | Promise<PushVerdict>

/** A sender that says what the test has told it to, and remembers what it was given. */
export class ScriptedSender implements PushSender {
  readonly given: PushMessage[] = []
  isClosed = false
  #script: Script
  #count = 0

  constructor(script: Script = () => this.sent()) {
    this.#script = script
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

  async close(): Promise<void> {
    this.isClosed = true
  }
}
