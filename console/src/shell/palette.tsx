import { useEffect, useState } from 'preact/hooks'
import { useLocation } from 'wouter-preact'
import { useOperator } from '../api/operator.ts'
import { useResource } from '../api/queries.ts'
import { FAILURE_CODES, STATUSES } from '../api/types.ts'
import { pageOfId } from '../pages/page-of-id.ts'
import { usePages } from '../pages/pages.tsx'
import type { Person } from '../pages/people/people-page.tsx'
import { Dialog } from '../ui/dialog.tsx'
import { useKeys } from '../ui/keyboard.ts'

const HELP: [keys: string, does: string][] = [
  ['⌘K, Ctrl+K or /', 'Search pages, people, jobs and ids'],
  ['j, k', 'Next and previous row'],
  ['x', 'Select the row'],
  ['Enter', 'Open the row'],
  ['?', 'This help'],
]

interface Place {
  path: string
  title: string
}

/** The page for an id. Ids of runs, threads and most users are UUIDs, and a trace has 32 hexadecimal digits. */
function placeOf(text: string, mayAct: boolean): Place | null {
  const id = text.trim()
  const path = pageOfId(id, { mayAct })
  if (path !== null) return { path, title: id }
  if (/^[0-9a-f]{32}$/i.test(id)) return { path: `/jobs?trace_id=${id}`, title: `Jobs with the trace ${id}` }
  const isUuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id)
  return isUuid ? { path: `/find/${id}`, title: id } : null
}

/** The lists of jobs by status and by error, as places. */
const LISTS: readonly Place[] = [
  ...STATUSES.map((status) => ({ path: `/jobs?status=${status}`, title: `Jobs: ${status.replaceAll('_', ' ')}` })),
  ...FAILURE_CODES.map((code) => ({
    path: `/jobs?error_code=${code}`,
    title: `Jobs that failed: ${code.replaceAll('_', ' ')}`,
  })),
  { path: '/jobs?output_check=failed', title: 'Jobs whose output does not fit its schema' },
]

const MIN_SEARCH = 2
const MAX_PEOPLE = 8

/** The people whose e-mail address or sub begins with the text. */
function usePeople(text: string): Place[] {
  const { operator } = useOperator()
  const found = useResource<{ data: Person[] }>('/v1/users', {
    query: { search: text, limit: MAX_PEOPLE },
    enabled: operator.mayReadUsers && text.length >= MIN_SEARCH,
    staleMs: 30_000,
  })
  return (found.data?.data ?? []).map(({ sub, email }) => ({
    path: `/people/${encodeURIComponent(sub)}`,
    title: email ?? sub,
  }))
}

const isApple = /Mac|iPhone|iPad/.test(navigator.userAgent)

/** The search of pages, people, lists and ids, with its field, and the help for the keyboard. */
export function Palette() {
  const [shown, setShown] = useState<'palette' | 'help' | null>(null)
  const openSearch = () => setShown('palette')
  const [text, setText] = useState('')
  const [, navigate] = useLocation()
  const { operator } = useOperator()
  const allowed = usePages()
  const people = usePeople(shown === 'palette' ? text.trim() : '')
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
  const field = (
    <button type="button" class="search-field" onClick={openSearch}>
      Search <kbd>{isApple ? '⌘K' : 'Ctrl K'}</kbd>
    </button>
  )
  if (shown === null) return field
  if (shown === 'help') {
    return (
      <>
        {field}
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
      </>
    )
  }
  const wanted = text.trim().toLowerCase()
  const byId = placeOf(text, operator.mayAct)
  const pages = allowed.flatMap(({ path, title }) => (title === null ? [] : { path, title }))
  const fits = ({ title }: Place) => title.toLowerCase().includes(wanted.replaceAll('_', ' '))
  const lists = wanted.length < MIN_SEARCH ? [] : LISTS
  const places = [...(byId ? [byId] : [...pages, ...lists].filter(fits)), ...people]
  const target = places[0]?.path ?? null
  const go = (path: string | null) => {
    if (path === null) return
    close('palette')
    navigate(path)
  }
  return (
    <>
      {field}
      <Dialog
        key="palette"
        title="Search"
        confirm={{ label: 'Go', onConfirm: () => go(target) }}
        onClose={() => close('palette')}
      >
        <label class="field">
          <span>A page, an e-mail address, a status, an error, or any id</span>
          <input autoFocus value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <ul class="choices">
          {places.map(({ path, title }) => (
            <li key={path}>
              <button type="button" class="button quiet" onClick={() => go(path)}>
                {title}
              </button>
            </li>
          ))}
        </ul>
        {places.length === 0 && <p class="muted">Nothing fits.</p>}
      </Dialog>
    </>
  )
}
