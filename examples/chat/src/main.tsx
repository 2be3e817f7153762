import { StrictMode, useMemo, useState } from 'react'
import { createRoot } from 'react-dom/client'
import { Chat } from './chat.tsx'
import { Jobs } from './jobs.tsx'
import { clientFor, USERS, type User } from './session.ts'
import './style.css'

function App() {
  const [user, setUser] = useState<User | null>(() => sessionStorage.getItem('user') as User | null)
  const signIn = (name: User | null) => {
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

function Home({ user, onSignOut }: { user: User; onSignOut: () => void }) {
  const api = useMemo(() => clientFor(user), [user])
  const [chat, setChat] = useState(() => sessionStorage.getItem(`chat-${user}`) ?? newChat(user))
  return (
    <>
      <header>
        <h1>Agent</h1>
        <button type="button" onClick={() => setChat(newChat(user))}>
          New chat
        </button>
        <button type="button" onClick={onSignOut} title="Sign out">
          {USERS[user]}
        </button>
      </header>
      <main className="home">
        <Chat key={chat} api={api} id={chat} />
        <Jobs api={api} />
      </main>
    </>
  )
}

function newChat(user: User): string {
  const id = `chat-${user}-${Date.now()}`
  sessionStorage.setItem(`chat-${user}`, id)
  return id
}

const root = document.getElementById('root')
if (root) {
  createRoot(root).render(
    <StrictMode>
      <App />
    </StrictMode>,
  )
}
