import { StrictMode, useEffect, useMemo, useState } from 'react'
import { createRoot } from 'react-dom/client'
import { Chat } from './chat.tsx'
import { Conversations } from './conversations.tsx'
import { Jobs } from './jobs.tsx'
import { clientFor, USERS, type User } from './session.ts'
import './style.css'

function App() {
  const [user, setUser] = useState<User | null>(() => sessionStorage.getItem('user') as User | null)
  const signIn = (name: User | null) => {
    history.replaceState(null, '', location.pathname)
    if (name === null) sessionStorage.removeItem('user')
    else sessionStorage.setItem('user', name)
    setUser(name)
  }
  if (user === null) return <SignIn onSignIn={signIn} />
  return <Home key={user} user={user} onSignOut={() => signIn(null)} />
}

function SignIn({ onSignIn }: { onSignIn: (user: User) => void }) {
  return (
    <main className="sign-in">
      <h1>Chat on Project API</h1>
      <p>Sign in as one of the sandbox's users.</p>
      {(Object.keys(USERS) as User[]).map((user) => (
        <button type="button" key={user} className="primary" onClick={() => onSignIn(user)}>
          {USERS[user]}
        </button>
      ))}
    </main>
  )
}

/** The address of the page names the conversation, so that a reload, a bookmark and another device open the same one. */
function Home({ user, onSignOut }: { user: User; onSignOut: () => void }) {
  const api = useMemo(() => clientFor(user), [user])
  const [chat, setChat] = useState({ threadId: threadInAddress(), key: 0 })
  const open = (threadId: string | null) => {
    history.pushState(null, '', threadId === null ? location.pathname : `#${threadId}`)
    setChat(({ key }) => ({ threadId, key: key + 1 }))
  }
  useEffect(() => {
    const onMove = () => setChat(({ key }) => ({ threadId: threadInAddress(), key: key + 1 }))
    addEventListener('popstate', onMove)
    return () => removeEventListener('popstate', onMove)
  }, [])
  return (
    <>
      <header>
        <h1>Agent</h1>
        <button type="button" onClick={() => open(null)}>
          New chat
        </button>
        <button type="button" onClick={onSignOut} title="Sign out">
          {USERS[user]}
        </button>
      </header>
      <main className="home">
        <Chat key={chat.key} api={api} threadId={chat.threadId} />
        <aside>
          <Conversations api={api} onOpen={open} />
          <Jobs api={api} />
        </aside>
      </main>
    </>
  )
}

function threadInAddress(): string | null {
  return location.hash.slice(1) || null
}

const root = document.getElementById('root')
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  )
}
