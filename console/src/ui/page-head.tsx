import type { ComponentChildren } from 'preact'
import { useLayoutEffect } from 'preact/hooks'

const CONSOLE = 'Project API console'

/** The title of a page, with its actions beside it. The browser's tab gets the title together with the page, not after it. */
export function PageHead({ title, children }: { title: string; children?: ComponentChildren }) {
  useLayoutEffect(() => {
    document.title = `${title} – ${CONSOLE}`
    return () => {
      document.title = CONSOLE
    }
  }, [title])
  return (
    <div class="page-head">
      <h1>{title}</h1>
      {children && <div class="actions">{children}</div>}
    </div>
  )
}
