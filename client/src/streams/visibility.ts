import type { Clock } from '../http/clock.ts'

/** A tab that is hidden for a moment, as while the user looks for another one, keeps its streams. */
const GRACE_MS = 2_000

/** The part of a page's document that tells whether the user sees the page. React Native and Node have none. */
type Page = Pick<Document, 'hidden' | 'addEventListener' | 'removeEventListener'>

function ownPage(): Page | undefined {
  const { document } = globalThis as { document?: Page }
  return typeof document?.hidden === 'boolean' ? document : undefined
}

/** Resolves when the page is shown, or when the signal aborts. */
export async function whenShown(signal: AbortSignal | undefined): Promise<void> {
  const page = ownPage()
  if (!page?.hidden || signal?.aborted) return
  await new Promise<void>((resolve) => {
    const check = () => {
      if (page.hidden && !signal?.aborted) return
      page.removeEventListener('visibilitychange', check)
      signal?.removeEventListener('abort', check)
      resolve()
    }
    page.addEventListener('visibilitychange', check)
    signal?.addEventListener('abort', check)
  })
}

/** Calls the function once the page has been hidden for two seconds. Returns a function that ends the watch. */
export function onHidden(clock: Clock, close: () => void): () => void {
  const page = ownPage()
  let waiting = new AbortController()
  const check = () => {
    waiting.abort()
    waiting = new AbortController()
    const { signal } = waiting
    if (page?.hidden) void clock.sleep(GRACE_MS, signal).then(() => !signal.aborted && close())
  }
  page?.addEventListener('visibilitychange', check)
  return () => {
    waiting.abort()
    page?.removeEventListener('visibilitychange', check)
  }
}
