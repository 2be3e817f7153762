import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from '@tanstack/preact-query'
import { useMemo, useSyncExternalStore } from 'preact/compat'
import { Redirect, Route, Router, Switch } from 'wouter-preact'
import { OperatorContext } from './api/operator.ts'
import { usePages } from './pages/pages.tsx'
import type { Session } from './session/session.ts'
import { SignInPage } from './session/sign-in-page.tsx'
import { Shell } from './shell/shell.tsx'
import { Failure, Loading } from './ui/states.tsx'
import { Toasts } from './ui/toasts.tsx'

/** The whole console: sign-in, then the pages. */
export function App({ session }: { session: Session }) {
  const state = useSyncExternalStore(session.subscribe, session.state)
  const api = state.kind === 'signed_in' ? state.api : null
  // Each operator has a separate cache: the next operator must not see data of the last one.
  const queries = useMemo(() => createQueries(session), [session, api])
  if (state.kind === 'loading') return <Loading label="Loading the console" />
  if (state.kind === 'failed') {
    return <Failure title="The console could not start" message={state.message} onRetry={() => location.reload()} />
  }
  if (state.kind === 'signed_out') return <SignInPage session={session} state={state} />
  const { operator, settings } = state
  return (
    <QueryClientProvider client={queries}>
      <OperatorContext.Provider value={{ api: state.api, operator, settings, signOut: () => session.signOut() }}>
        <Router base="/console">
          <Toasts>
            <Shell>
              <Pages />
            </Shell>
          </Toasts>
        </Router>
      </OperatorContext.Provider>
    </QueryClientProvider>
  )
}

function Pages() {
  const pages = usePages()
  return (
    <Switch>
      {pages.map(({ path, component: Page }) => (
        <Route key={path} path={path}>
          {/* Each record has its own page: the next one must not show the state of the last one. */}
          {(params) => <Page key={JSON.stringify(params)} params={params} />}
        </Route>
      ))}
      <Route>
        <Redirect to="/" />
      </Route>
    </Switch>
  )
}

/** The client retries by itself. Offline requests fail, so that no action happens later than the operator expects. */
function createQueries(session: Session): QueryClient {
  const onError = (error: Error) => {
    if ('status' in error && error.status === 401) session.end()
  }
  return new QueryClient({
    queryCache: new QueryCache({ onError }),
    mutationCache: new MutationCache({ onError }),
    defaultOptions: {
      queries: { retry: false, staleTime: 2_000, networkMode: 'always' },
      mutations: { networkMode: 'always' },
    },
  })
}
