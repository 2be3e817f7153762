import type { ComponentChildren } from 'preact'

/** The title of a page, with the page's actions beside it. */
export function PageHead({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="page-head">
      <h1>{title}</h1>
      {children && <div class="actions">{children}</div>}
    </div>
  )
}
