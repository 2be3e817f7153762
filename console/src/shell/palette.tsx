import { useEffect, useState } from 'preact/hooks'
import { useLocation } from 'wouter-preact'
import { usePages } from '../pages/pages.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { useKeys } from '../ui/keyboard.ts'

const HELP: [keys: string, does: string][] = [
  ['⌘K or Ctrl+K', 'Go to a page or an id'],
  ['/', 'Search by id'],
  ['j, k', 'Next and previous row'],
  ['x', 'Select the row'],
  ['Enter', 'Open the row'],
  ['?', 'This help'],
]

/** The page for an id. Ids of runs and threads are UUIDs; the list of jobs finds them. */
function placeOf(text: string): string | null {
  const id = text.trim()
  if (id.startsWith('job_')) return `/jobs/${id}`
  if (id.startsWith('cbk_')) return `/callbacks?id=${id}`
  if (/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id)) return `/find/${id.toLowerCase()}`
  return null
}

/** The palette of pages and ids, and the help for the keyboard. */
export function Palette() {
  const [shown, setShown] = useState<'palette' | 'help' | null>(null)
  const [text, setText] = useState('')
  const [, navigate] = useLocation()
  const allowed = usePages()
  useKeys((key, event) => {
    if (key === '?') setShown('help')
    if (key !== '/') return
    event.preventDefault()
    setShown('palette')
  })
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.key !== 'k' || !(event.metaKey || event.ctrlKey)) return
      event.preventDefault()
      setShown('palette')
    }
    addEventListener('keydown', listen)
    return () => removeEventListener('keydown', listen)
  }, [])
  // The browser reports the end of a dialog late: the next one may be open already.
  const close = (ended: typeof shown) => {
    setShown((now) => (now === ended ? null : now))
    if (ended === 'palette') setText('')
  }
  if (shown === 'help') {
    return (
      <Dialog key="help" title="Keyboard" onClose={() => close('help')}>
        <dl class="facts">
          {HELP.map(([keys, does]) => (
            <>
              <dt>
                <kbd>{keys}</kbd>
              </dt>
              <dd>{does}</dd>
            </>
          ))}
        </dl>
      </Dialog>
    )
  }
  if (shown === null) return null
  const wanted = text.trim().toLowerCase()
  const pages = allowed.filter(({ title }) => title?.toLowerCase().includes(wanted))
  const target = placeOf(text) ?? pages[0]?.path ?? null
  const go = (path: string | null) => {
    if (path === null) return
    close('palette')
    navigate(path)
  }
  return (
    <Dialog
      key="palette"
      title="Go to"
      confirm={{ label: 'Go', onConfirm: () => go(target) }}
      onClose={() => close('palette')}
    >
      <label class="field">
        <span>A page, or the id of a job, run, thread or callback</span>
        <input autoFocus value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <ul class="choices">
        {pages.map(({ path, title }) => (
          <li key={path}>
            <button type="button" class="button quiet" onClick={() => go(path)}>
              {title}
            </button>
          </li>
        ))}
      </ul>
    </Dialog>
  )
}
