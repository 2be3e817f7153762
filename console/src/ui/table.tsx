import type { ComponentChildren } from 'preact'
import { useLocation } from 'wouter-preact'
import { Button } from './button.tsx'
import { Empty } from './states.tsx'

export interface Column<Row> {
  title: string
  render: (row: Row) => ComponentChildren
  /** Hidden on a phone and a tablet. */
  wide?: boolean
  numeric?: boolean
}

export interface Selection {
  ids: ReadonlySet<string>
  toggle: (id: string) => void
}

interface DataTableProps<Row extends { id: string }> {
  label: string
  columns: Column<Row>[]
  rows: readonly Row[]
  empty: string
  href?: (row: Row) => string
  selection?: Selection
  /** The current row of the keyboard. */
  current?: number
  more?: { has: boolean; busy: boolean; load: () => void }
}

/** Every list of the console. A row opens with a click or with the link in its first cell. */
export function DataTable<Row extends { id: string }>(props: DataTableProps<Row>) {
  const { label, columns, rows, empty, href, selection, current, more } = props
  const [, navigate] = useLocation()
  if (rows.length === 0 && !more?.has) return <Empty title={empty} />
  return (
    <div class="table-frame">
      <table>
        <caption class="hidden">{label}</caption>
        <thead>
          <tr>
            {selection && <th class="check">Selected</th>}
            {columns.map(({ title, wide, numeric }) => (
              <th key={title} scope="col" class={classesOf({ wide, numeric })}>
                {title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, index) => (
            <tr
              key={row.id}
              data-id={row.id}
              class={classesOf({ link: href !== undefined, current: index === current })}
              onClick={(event) => {
                const isControl = event.target instanceof Element && event.target.closest('a, button, input, label')
                if (href && !isControl && !getSelection()?.toString()) navigate(href(row))
              }}
            >
              {selection && (
                <td class="check">
                  <input
                    type="checkbox"
                    aria-label={`Select ${row.id}`}
                    checked={selection.ids.has(row.id)}
                    onChange={() => selection.toggle(row.id)}
                  />
                </td>
              )}
              {columns.map(({ title, render, wide, numeric }) => (
                <td key={title} class={classesOf({ wide, numeric })}>
                  {render(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {more?.has && (
        <Button busy={more.busy} onClick={more.load}>
          Load more
        </Button>
      )}
    </div>
  )
}

function classesOf(flags: Record<string, boolean | undefined>): string {
  return Object.keys(flags)
    .filter((name) => flags[name])
    .join(' ')
}
