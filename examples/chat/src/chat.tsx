import { useChat } from '@ai-sdk/react'
import { createChatTransport } from '@project-api/client/ai-sdk'
import type { UIMessage } from 'ai'
import { type FormEvent, useEffect, useMemo, useRef, useState } from 'react'
import { inputOf } from './sandbox-agent.ts'
import type { Api } from './session.ts'

type Message = UIMessage<{ jobId?: string; answer?: string }, { question: { value: { question?: string } | null } }>

const IDEAS = ['Tell me about yourself', 'Publish the report', 'What can you do?']

export function Chat({ api, id }: { api: Api; id: string }) {
  const transport = useMemo(() => createChatTransport({ api, type: 'agent', toInput: inputOf }), [api])
  const { messages, sendMessage, status, stop, error } = useChat<Message>({
    id,
    messages: useMemo(() => restore(id), [id]),
    transport,
    resume: true,
  })
  const [draft, setDraft] = useState('')
  const end = useRef<HTMLDivElement>(null)
  useEffect(() => {
    localStorage.setItem(id, JSON.stringify(messages))
    end.current?.scrollIntoView({ block: 'end' })
  }, [id, messages])

  const isBusy = status === 'submitted' || status === 'streaming'
  const send = (text: string, answer?: string) =>
    void sendMessage({ text, ...(answer !== undefined && { metadata: { answer } }) })
  // `stop` only closes the stream. The job runs until it is cancelled.
  const stopJob = () => {
    void transport.cancel(id).catch(() => {})
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
                  <p>{part.data.value?.question ?? 'Shall I go on?'}</p>
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
          </article>
        ))}
        {status === 'submitted' && <p className="typing">The agent is starting …</p>}
        {error && <p role="alert">{error.message}</p>}
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

/** Messages keep their ids, so that a resumed answer replaces the part shown before. */
function restore(id: string): Message[] {
  return JSON.parse(localStorage.getItem(id) ?? '[]') as Message[]
}
