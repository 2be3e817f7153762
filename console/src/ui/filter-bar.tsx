import { Button } from './button.tsx'
import { ZONE } from './time.tsx'

export type FilterField =
  | { name: string; label: string; choices: readonly string[] }
  | { name: string; label: string; choices?: undefined; type?: 'text' | 'datetime-local' }

/** The fields with the job types of this deployment as the choices of `type`. */
export function withTypes(fields: readonly FilterField[], types: readonly string[]): FilterField[] {
  return fields.map((field) => (field.name === 'type' ? { ...field, choices: types } : field))
}

interface FilterBarProps {
  fields: readonly FilterField[]
  values: Record<string, string>
  onChange: (changes: Record<string, string | null>) => void
}

/** One row of filters. A choice applies at once, a text after Enter. */
export function FilterBar({ fields, values, onChange }: FilterBarProps) {
  const isFiltered = fields.some(({ name }) => values[name])
  const isWide = matchMedia('(width >= 48rem)').matches
  return (
    <details class="filter-fold" open={isWide || isFiltered}>
      <summary>Filters</summary>
      <search class="filters">
        {fields.map((field) => (
          <label key={field.name} class="field small">
            <span>{field.choices || field.type !== 'datetime-local' ? field.label : `${field.label} (${ZONE})`}</span>
            {field.choices ? (
              <select
                value={values[field.name] ?? ''}
                onChange={(event) => onChange({ [field.name]: event.currentTarget.value })}
              >
                <option value="">any</option>
                {withValue(field.choices, values[field.name]).map((choice) => (
                  <option key={choice} value={choice}>
                    {choice.replaceAll('_', ' ')}
                  </option>
                ))}
              </select>
            ) : field.type === 'datetime-local' ? (
              <input
                type="datetime-local"
                step={1}
                value={toLocal(values[field.name])}
                onChange={(event) => onChange({ [field.name]: toUtc(event.currentTarget.value) })}
              />
            ) : (
              <input
                value={values[field.name] ?? ''}
                onChange={(event) => onChange({ [field.name]: event.currentTarget.value.trim() })}
              />
            )}
          </label>
        ))}
        {isFiltered && (
          <Button kind="quiet" onClick={() => onChange(Object.fromEntries(fields.map(({ name }) => [name, null])))}>
            Clear filters
          </Button>
        )}
      </search>
    </details>
  )
}

/** The address has times in UTC, so that a shared view means the same in every zone. The field shows the operator's own. */
function toLocal(utc: string | undefined): string {
  const at = new Date(utc ?? '')
  if (Number.isNaN(at.getTime())) return ''
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19)
}

function toUtc(local: string): string | null {
  return local === '' ? null : new Date(local).toISOString()
}

/** An address may have a value that is no choice any more. */
function withValue(choices: readonly string[], value: string | undefined): readonly string[] {
  return value === undefined || choices.includes(value) ? choices : [...choices, value]
}
