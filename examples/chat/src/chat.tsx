import { useChat } from '@ai-sdk/react'
import { type ChatMessage, createChatTransport, type JobChatTransport } from '@project-api/client/ai-sdk'
import { type FormEvent, useEffect, useMemo, useRef, useState } from 'react'
import { inputOf } from './sandbox-agent.ts'
import type { Api, JobTypes } from './session.ts'

const IDEAS = ['Tell me about yourself', 'Publish the report', 'What can you do?']

type Transport = JobChatTransport<JobTypes, 'agent'>

/** Loads the conversation from the service, which knows it on every device. */
export function Chat({ api, threadId }: { api: Api; threadId: string | null }) {
  const [loaded, setLoaded] = useState<ChatMessage[] | null>(threadId === null ? [] : null)
  const [problem, setProblem] = useState('')
  const transport = useMemo(
    () =>
      createChatTransport({
        api,
        type: 'agent',
        toInput: inputOf,
        onConversation: (chat) => history.replaceState(null, '', `#${chat.threadId}`),
      }),
    [api],
  )
  useEffect(() => {
    if (threadId !== null) transport.load(threadId).then(setLoaded, (error: Error) => setProblem(error.message))
  }, [transport, threadId])
  if (problem !== '') return <p role="alert">{problem}</p>
  if (loaded === null) return <p className="typing">Loading …</p>
  return <Conversation id={threadId ?? undefined} messages={loaded} transport={transport} />
}

interface ConversationProps {
  /** The id of the conversation. A new chat has none yet. */
  id: string | undefined
  messages: ChatMessage[]
  transport: Transport
}

function Conversation({ id, messages: loaded, transport }: ConversationProps) {
  const chat = useChat<ChatMessage>({ ...(id !== undefined && { id }), messages: loaded, transport, resume: true })
  const { messages, setMessages, resumeStream, sendMessage, status, stop, error } = chat
  const [draft, setDraft] = useState('')
  const end = useRef<HTMLDivElement>(null)
  // biome-ignore lint/correctness/useExhaustiveDependencies: each new message moves the page.
  useEffect(() => {
    end.current?.scrollIntoView({ block: 'end' })
  }, [messages])

  // Another tab or another device may continue the conversation.
  useEffect(
    () =>
      transport.watch(chat.id, (update) => {
        setMessages(update)
        void resumeStream()
      }),
    [transport, chat.id, setMessages, resumeStream],
  )

  const isBusy = status === 'submitted' || status === 'streaming'
  const send = (text: string, answer?: string) =>
    void sendMessage({ text, ...(answer !== undefined && { metadata: { answer } }) })
  // `stop` only closes the stream. The job runs until it is cancelled.
  const stopJob = () => {
    void transport.cancel(chat.id).catch(() => {})
    void stop()
  }
  const submit = (event: FormEvent) => {
    event.preventDefault()
    if (draft.trim() === '' || isBusy) return
    send(draft.trim())
    setDraft('')
  }

  return (
    <section className="chat" aria-label="Conversation">
      <div className="messages" role="log" aria-live="polite">
        {messages.length === 0 && (
          <div className="ideas">
            <h2>What should the agent do?</h2>
            {IDEAS.map((idea) => (
              <button type="button" key={idea} onClick={() => send(idea)}>
                {idea}
              </button>
            ))}
          </div>
        )}
        {messages.map((message, place) => (
          <article key={message.id} className={message.role}>
            {message.parts.map((part, index) => {
              const key = `${message.id}-${index}`
              if (part.type === 'reasoning') {
                return (
                  <details key={key} open={isBusy && place === messages.length - 1}>
                    <summary>Thinking</summary>
                    {part.text}
                  </details>
                )
              }
              if (part.type === 'text') return <p key={key}>{part.text}</p>
              if (part.type !== 'data-question') return null
              const isOpen = place === messages.length - 1 && !isBusy
              return (
                <div key={key} className="question">
                  <p>{(part.data.value as { question?: string } | null)?.question ?? 'Shall I go on?'}</p>
                  {isOpen && (
                    <div>
                      <button type="button" className="primary" onClick={() => send('Yes', 'approved')}>
                        Yes
                      </button>
                      <button type="button" onClick={() => send('No', 'rejected')}>
                        No
                      </button>
                    </div>
                  )}
                </div>
              )
            })}
            {message.metadata?.status === 'cancelled' && <p className="quiet">Cancelled</p>}
            {message.metadata?.error && <p role="alert">{message.metadata.error.message}</p>}
          </article>
        ))}
        {status === 'submitted' && <p className="typing">The agent is starting …</p>}
        {error && !messages.at(-1)?.metadata?.error && <p role="alert">{error.message}</p>}
        <div ref={end} />
      </div>
      <form onSubmit={submit}>
        <input
          value={draft}
          onChange={(event) => setDraft(event.target.value)}
          placeholder="Message"
          aria-label="Message"
        />
        {isBusy ? (
          <button type="button" onClick={stopJob}>
            Stop
          </button>
        ) : (
          <button type="submit" className="primary" disabled={draft.trim() === ''}>
            Send
          </button>
        )}
      </form>
    </section>
  )
}
