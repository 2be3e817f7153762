import type { ComponentChildren } from 'preact'
import { useEffect } from 'preact/hooks'

const CONSOLE = 'Project API console'

/** The title of a page, also in the browser's tab, with the page's actions beside it. */
export function PageHead({ title, children }: { title: string; children?: ComponentChildren }) {
  useEffect(() => {
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
