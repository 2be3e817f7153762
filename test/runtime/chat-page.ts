import { AbstractChat, type ChatState, type ChatStatus } from 'ai'
import { type ChatMessage, textOfMessage } from '../../client/src/ai-sdk/chat-messages.ts'
import { createChatTransport } from '../../client/src/ai-sdk/chat-transport.ts'
import { createClient } from '../../client/src/client.ts'

/**
 * The page of test/runtime/devices.test.ts: the chat of the AI SDK without React. `?thread=` is the conversation, and
 * `say(text)` sends a message.
 */
const { url, token, pauseMs } = JSON.parse(decodeURIComponent(location.hash.slice(1))) as {
  url: string
  token: string
  pauseMs: number
}

/** Draws the messages after each change. */
class PageState implements ChatState<ChatMessage> {
  #messages: ChatMessage[]
  #status: ChatStatus = 'ready'
  error: Error | undefined

  constructor(messages: ChatMessage[]) {
    this.#messages = messages
    this.#draw()
  }

  get messages() {
    return this.#messages
  }

  set messages(messages) {
    this.#messages = messages
    this.#draw()
  }

  get status() {
    return this.#status
  }

  set status(status) {
    this.#status = status
    this.#draw()
  }

  readonly pushMessage = (message: ChatMessage) => {
    this.messages = [...this.#messages, message]
  }

  readonly popMessage = () => {
    this.messages = this.#messages.slice(0, -1)
  }

  readonly replaceMessage = (place: number, message: ChatMessage) => {
    this.messages = this.#messages.with(place, message)
  }

  readonly snapshot = <Value>(value: Value): Value => structuredClone(value)

  #draw(): void {
    document.body.dataset.status = this.#status
    document.body.replaceChildren(
      ...this.#messages.map((message) => {
        const line = document.createElement('p')
        line.className = message.role
        line.dataset.status = message.metadata?.status ?? ''
        line.textContent = textOfMessage(message)
        return line
      }),
    )
  }
}

class PageChat extends AbstractChat<ChatMessage> {}

const transport = createChatTransport({
  api: createClient({ url, token }),
  type: 'agent',
  toInput: (message) => ({ messages: [{ role: 'user', content: textOfMessage(message) }], prompt: pauseMs }),
  onConversation: ({ threadId }) => history.replaceState(null, '', `?thread=${threadId}${location.hash}`),
})
const thread = new URLSearchParams(location.search).get('thread')
const messages = thread === null ? [] : await transport.load(thread)
const chat = new PageChat({ id: thread ?? 'new', state: new PageState(messages), transport })
transport.watch(chat.id, (update) => {
  chat.messages = update(chat.messages)
  void chat.resumeStream()
})
Object.assign(globalThis, { say: (text: string) => void chat.sendMessage({ text }) })
if (thread !== null) void chat.resumeStream()
