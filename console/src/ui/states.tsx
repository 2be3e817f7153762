import { type ComponentChildren, createContext } from 'preact'
import { useContext } from 'preact/hooks'
import { Button } from './button.tsx'

export function Loading({ label = 'Loading' }: { label?: string }) {
  return (
    <div class="state" role="status">
      <span class="spinner" aria-hidden="true" />
      <span>{label}</span>
    </div>
  )
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="state">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
    </div>
  )
}

export function Failure({ title, message, onRetry }: { title: string; message: string; onRetry: () => void }) {
  return (
    <div class="state" role="alert">
      <strong>{title}</strong>
      <p>{message}</p>
      <Button onClick={onRetry}>Try again</Button>
    </div>
  )
}

interface Loadable {
  data: unknown
  error: Error | null
  refetch: () => unknown
}

const Deleted = createContext(false)

/** Whether the object of the page was deleted while the page was open: nothing can be done with it any more. */
export function useIsDeleted(): boolean {
  return useContext(Deleted)
}

/** Shows that a query is loading or has failed. Data that was loaded before stays on the screen, with a notice. */
export function Loaded({ query, children }: { query: Loadable; children: ComponentChildren }) {
  const retry = () => void query.refetch()
  // A part of a deleted object is gone, too: one notice is enough.
  const isSaid = useIsDeleted()
  const isGone = query.error !== null && 'status' in query.error && query.error.status === 404
  if (query.data === undefined) {
    if (!query.error) return <Loading />
    const message = isGone ? `${query.error.message}. It may have been deleted.` : query.error.message
    return <Failure title="This could not be loaded" message={message} onRetry={retry} />
  }
  return (
    <Deleted.Provider value={isSaid || isGone}>
      {isGone && !isSaid && (
        <p class="notice bad" role="alert">
          This was deleted while the page was open. You see what it was before.
        </p>
      )}
      {query.error && !isGone && (
        <p class="notice bad" role="alert">
          This data may be old: {query.error.message}{' '}
          <Button kind="quiet" onClick={retry}>
            Try again
          </Button>
        </p>
      )}
      {children}
    </Deleted.Provider>
  )
}
