import type { SharedEvents } from '../streams/shared-events.ts'
import { hasEnded, type Turn } from '../types.ts'
import type { ChatMessage } from './chat-messages.ts'

/** Adds the changed turns to the messages of a chat, for `setMessages` of `useChat`. */
export type MessagesUpdate = (messages: ChatMessage[]) => ChatMessage[]

export interface WatchedConversation {
  events: SharedEvents
  /** Undefined while the chat has no conversation. */
  threadId: () => string | undefined
  /** True while the chat shows a turn of its own. It is checked afterwards. */
  isBusy: () => boolean
  /** Looks for turns that the chat has not shown, and reports them. False: the chat became busy, so it must be repeated. */
  check: () => Promise<boolean>
}

/** Calls `check` after each event of the conversation, one at a time, and only while the chat is idle. */
export function watchConversation({ events, threadId, isBusy, check }: WatchedConversation) {
  let isDue = false
  let isChecking = false
  const checkIfIdle = async () => {
    if (isChecking) return
    isChecking = true
    while (isDue && !isBusy()) {
      isDue = false
      // A check that fails is repeated after the next event.
      if (!(await check().catch(() => true))) isDue = true
    }
    isChecking = false
  }
  const request = () => {
    if (threadId() === undefined) return
    isDue = true
    void checkIfIdle()
  }
  const stop = events.listen({
    // The chat was loaded before the stream was open.
    onOpen: request,
    onEvent: ({ type, data }) => {
      const isOfThread = 'thread_id' in data && data.thread_id === threadId()
      if (type === 'reset' || isOfThread) request()
    },
  })
  return { onIdle: () => void checkIfIdle(), stop }
}

/** What a chat shows of a turn: its run, and how that ended. */
export function stateOfTurn({ run, status }: Pick<Turn, 'run' | 'status'>): string {
  return hasEnded(status) || status === 'awaiting_input' ? `${run} ${status}` : `${run}`
}

/**
 * Puts the stored messages of a turn after those that the chat has of it. A message that was shown live has more parts
 * than the stored one, so it is replaced only if it did not show the end.
 */
export function addTurn(messages: readonly ChatMessage[], stored: readonly ChatMessage[]): ChatMessage[] {
  const shownIds = new Set(messages.map(({ id }) => id))
  const last = stored.findLastIndex(({ id }) => shownIds.has(id))
  const kept = messages.map((message) => {
    const found = stored.find(({ id }) => id === message.id)
    if (!found?.metadata?.status || found.metadata.status === message.metadata?.status) return message
    // A cancelled run has no stored output.
    return found.parts.length > 0 ? found : { ...found, parts: message.parts }
  })
  return [...kept, ...stored.slice(last + 1)]
}
