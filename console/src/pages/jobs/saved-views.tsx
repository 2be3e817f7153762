import { useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { Button } from '../../ui/button.tsx'
import { Dialog } from '../../ui/dialog.tsx'

const STORED = 'console.views'
const MAX_VIEWS = 20
type View = { name: string; search: string }

/** Named sets of filters, kept in this browser. */
export function SavedViews({ filters }: { filters: Record<string, string> }) {
  const [views, setViews] = useState<View[]>(read)
  const [name, setName] = useState<string | null>(null)
  const search = new URLSearchParams(filters).toString()
  const store = (next: View[]) => {
    localStorage.setItem(STORED, JSON.stringify(next))
    setViews(next)
  }
  return (
    <>
      {views.map((view) => (
        <span key={view.name} class="view">
          <Link href={`/jobs?${view.search}`}>{view.name}</Link>
          <Button
            kind="quiet"
            label={`Remove the view ${view.name}`}
            onClick={() => store(views.filter((one) => one !== view))}
          >
            ×
          </Button>
        </span>
      ))}
      {search !== '' && <Button onClick={() => setName('')}>Save this view</Button>}
      {name !== null && (
        <Dialog
          title="Save this view"
          confirm={{
            label: 'Save',
            onConfirm: () => {
              store([...views.filter((view) => view.name !== name), { name, search }].slice(-MAX_VIEWS))
              setName(null)
            },
          }}
          onClose={() => setName(null)}
        >
          <label class="field">
            <span>Name</span>
            <input required maxLength={40} value={name} onInput={(event) => setName(event.currentTarget.value)} />
          </label>
        </Dialog>
      )}
    </>
  )
}

function read(): View[] {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(STORED) ?? '[]')
    return Array.isArray(stored) ? (stored as View[]) : []
  } catch {
    return []
  }
}
