import { useEffect, useRef, useState } from 'preact/hooks'
import { useLocation } from 'wouter-preact'

/** Calls the handler for keys pressed outside of inputs and dialogs. */
export function useKeys(handle: (key: string, event: KeyboardEvent) => void): void {
  // Keys may arrive faster than the page renders.
  const latest = useRef(handle)
  latest.current = handle
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement | null
      const isTyping = target?.closest('input, textarea, select, dialog, [contenteditable]')
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return
      latest.current(event.key, event)
    }
    addEventListener('keydown', listen)
    return () => removeEventListener('keydown', listen)
  }, [])
}

interface ListKeys<Row> {
  href: (row: Row) => string
  toggle: ((id: string) => void) | undefined
}

/** `j` and `k` move, `x` selects, Enter opens. Returns the current row; -1 if there is none. */
export function useListKeys<Row extends { id: string }>(rows: readonly Row[], { href, toggle }: ListKeys<Row>): number {
  const at = useRef(-1)
  const [, draw] = useState(-1)
  const [, navigate] = useLocation()
  const current = Math.min(at.current, rows.length - 1)
  const move = (to: number) => {
    at.current = Math.max(0, Math.min(to, rows.length - 1))
    draw(at.current)
  }
  useKeys((key) => {
    const row = rows[at.current]
    if (key === 'j') move(at.current + 1)
    else if (key === 'k') move(at.current - 1)
    else if (key === 'x' && row) toggle?.(row.id)
    else if (key === 'Enter' && row && document.activeElement === document.body) navigate(href(row))
  })
  const id = rows[current]?.id
  useEffect(() => {
    if (id) document.querySelector(`tr[data-id="${CSS.escape(id)}"]`)?.scrollIntoView({ block: 'nearest' })
  }, [id])
  return current
}
