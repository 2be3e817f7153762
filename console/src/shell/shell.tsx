import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'
import { Link, useLocation } from 'wouter-preact'
import { useOperator } from '../api/operator.ts'
import { usePages } from '../pages/pages.tsx'
import { Palette } from './palette.tsx'
import { Trouble } from './trouble.tsx'

/** The frame of every page: navigation at the side, or behind a button on a phone and a tablet. */
export function Shell({ children }: { children: ComponentChildren }) {
  const { operator, settings, signOut } = useOperator()
  const [path] = useLocation()
  const [isOpen, setOpen] = useState(false)
  const pages = usePages()
  const isCurrent = (to: string) => (to === '/' ? path === '/' : path === to || path.startsWith(`${to}/`))
  return (
    <div class="shell">
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <header class="top">
        <Link href="/" class="brand">
          Project API
        </Link>
        <Palette />
        <button
          type="button"
          class="button quiet menu-button"
          aria-expanded={isOpen}
          aria-controls="navigation"
          onClick={() => setOpen(!isOpen)}
        >
          Menu
        </button>
      </header>
      <nav id="navigation" class={isOpen ? 'side open' : 'side'} aria-label="Console">
        <ul>
          {pages
            .filter(({ title }) => title !== null)
            .map(({ path: to, title }) => (
              <li key={to}>
                <Link href={to} aria-current={isCurrent(to) ? 'page' : undefined} onClick={() => setOpen(false)}>
                  {title}
                </Link>
              </li>
            ))}
        </ul>
        {settings.dev && (
          <div class="sandbox">
            <h2>Sandbox</h2>
            <ul>
              {Object.entries(settings.dev.links).map(([title, href]) => (
                <li key={href}>
                  <a href={href}>{title}</a>
                </li>
              ))}
            </ul>
          </div>
        )}
        <div class="operator">
          <span>{operator.name}</span>
          {!operator.mayAct && <span class="badge">read only</span>}
          <button type="button" class="button quiet" onClick={signOut}>
            Sign out
          </button>
        </div>
      </nav>
      <main id="content" tabIndex={-1}>
        <Trouble />
        {children}
      </main>
    </div>
  )
}
