import type { ConversationItem } from '@project-api/client'
import { useEvents } from '@project-api/client/react'
import { useCallback, useEffect, useState } from 'react'
import type { Api } from './session.ts'

/** The newest conversations of the user, from any device. Read again when a job begins or ends. */
export function Conversations({ api, onOpen }: { api: Api; onOpen: (threadId: string) => void }) {
  const [found, setFound] = useState<ConversationItem[]>([])
  const load = useCallback(() => {
    api.conversations
      .list({ limit: 10 })
      .page()
      .then(({ data }) => setFound(data))
      .catch(() => {})
  }, [api])
  useEffect(load, [load])
  useEvents(api, load)
  return (
    <nav aria-label="Conversations">
      <h2>Conversations</h2>
      <ul>
        {found.map(({ thread_id, title }) => (
          <li key={thread_id}>
            <button type="button" onClick={() => onOpen(thread_id)}>
              {title ?? 'Untitled'}
            </button>
          </li>
        ))}
      </ul>
    </nav>
  )
}
