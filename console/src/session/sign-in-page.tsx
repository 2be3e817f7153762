import { useState } from 'preact/hooks'
import { Button } from '../ui/button.tsx'
import type { Session, SessionState } from './session.ts'

type SignedOut = Extract<SessionState, { kind: 'signed_out' }>

const devUser = ({ dev }: SignedOut['settings']) => (dev ? { user: dev.user } : {})

export function SignInPage({ session, state }: { session: Session; state: SignedOut }) {
  const { settings, message, refused } = state
  const [credential, setCredential] = useState('')
  const [isBusy, setBusy] = useState(false)
  const enter = (work: Promise<void>) => {
    setBusy(true)
    void work.finally(() => setBusy(false))
  }
  return (
    <main class="sign-in">
      <h1>Project API console</h1>
      {message !== null && (
        <p class="notice bad" role="alert">
          {message}
        </p>
      )}
      {settings.dev && (
        <Button kind="primary" busy={isBusy} onClick={() => enter(session.signIn(settings, devUser(settings)))}>
          Sign in as {settings.dev.user}
        </Button>
      )}
      {settings.clientId !== null && (
        <Button
          kind={settings.dev ? 'plain' : 'primary'}
          busy={isBusy}
          onClick={() => enter(session.signIn(settings, { asAnother: settings.dev !== null }))}
        >
          {settings.dev ? 'Sign in as another user' : 'Sign in'}
        </Button>
      )}
      {refused !== undefined && settings.clientId !== null && (
        <Button onClick={() => session.signOut()}>Sign {refused} out</Button>
      )}
      {settings.clientId === null && (
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault()
            enter(session.useCredential(settings, credential.trim()))
          }}
        >
          <p>
            No sign-in is configured (<code>CONSOLE_CLIENT_ID</code>). Paste an access token or a service key. It stays
            in the memory of this page.
          </p>
          <label class="field">
            <span>Access token or service key</span>
            <input
              type="password"
              autocomplete="off"
              required
              value={credential}
              onInput={(event) => setCredential(event.currentTarget.value)}
            />
          </label>
          <Button kind="primary" type="submit" busy={isBusy}>
            Sign in
          </Button>
        </form>
      )}
    </main>
  )
}
