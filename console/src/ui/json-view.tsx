import { useState } from 'preact/hooks'
import { ExactNumber } from '../exact-json.ts'
import { CopyButton } from './copy-button.tsx'

const SHOWN_AT_FIRST = 100
const LONG_TEXT = 2_000

/** A JSON document as a tree. Draws a branch only when it is opened, so that a large document does not freeze the page. */
export function JsonView({ title, value }: { title: string; value: unknown }) {
  return (
    <section class="card" aria-label={title}>
      <div class="page-head">
        <h2>{title}</h2>
        {value !== null && value !== undefined && <CopyButton label={`Copy ${title}`} text={() => write(value)} />}
      </div>
      {value === null || value === undefined ? (
        <p class="muted">none</p>
      ) : (
        <div class="json mono">
          <Branch value={value} open />
        </div>
      )}
    </section>
  )
}

function Branch({ value, open = false }: { value: unknown; open?: boolean }) {
  const [isOpen, setOpen] = useState(open)
  const [shown, setShown] = useState(SHOWN_AT_FIRST)
  if (!isParent(value)) return <Leaf value={value} />
  const isList = Array.isArray(value)
  const keys = Object.keys(value)
  const summary = isList ? `[ ${keys.length} ]` : `{ ${keys.length} }`
  if (keys.length === 0) return <span class="muted">{isList ? '[]' : '{}'}</span>
  return (
    <>
      <button type="button" class="fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        {isOpen ? '▾' : '▸'} {summary}
      </button>
      {isOpen && (
        <ul>
          {keys.slice(0, shown).map((key) => (
            <li key={key}>
              <span class="key">{isList ? key : JSON.stringify(key)}</span>:{' '}
              <Branch value={(value as Record<string, unknown>)[key]} />
            </li>
          ))}
          {keys.length > shown && (
            <li>
              <button type="button" class="fold" onClick={() => setShown(shown + 10 * SHOWN_AT_FIRST)}>
                {keys.length - shown} more
              </button>
            </li>
          )}
        </ul>
      )}
    </>
  )
}

function Leaf({ value }: { value: unknown }) {
  const [isWhole, setWhole] = useState(false)
  if (value instanceof ExactNumber) return <span class="number">{value.source}</span>
  if (typeof value !== 'string') return <span class="number">{JSON.stringify(value) ?? 'null'}</span>
  const text = isWhole || value.length <= LONG_TEXT ? value : value.slice(0, LONG_TEXT)
  return (
    <span class="text">
      {JSON.stringify(text)}
      {text.length < value.length && (
        <button type="button" class="fold" onClick={() => setWhole(true)}>
          {value.length - text.length} more characters
        </button>
      )}
    </span>
  )
}

function isParent(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !(value instanceof ExactNumber)
}

/** Writes every number as the service sent it. */
function write(value: unknown): string {
  return JSON.stringify(value, null, 2)
}
