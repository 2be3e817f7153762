import { Button } from './button.tsx'

export type FilterField =
  | { name: string; label: string; choices: readonly string[] }
  | { name: string; label: string; choices?: undefined; type?: 'text' | 'datetime-local' }

interface FilterBarProps {
  fields: readonly FilterField[]
  values: Record<string, string>
  onChange: (changes: Record<string, string | null>) => void
}

/** One row of filters. A choice applies at once, a text after Enter. */
export function FilterBar({ fields, values, onChange }: FilterBarProps) {
  const isFiltered = fields.some(({ name }) => values[name])
  const isWide = matchMedia('(min-width: 48rem)').matches
  return (
    <details class="filter-fold" open={isWide || isFiltered}>
      <summary>Filters</summary>
      <search class="filters">
        {fields.map((field) => (
          <label key={field.name} class="field small">
            <span>{field.label}</span>
            {field.choices ? (
              <select
                value={values[field.name] ?? ''}
                onChange={(event) => onChange({ [field.name]: event.currentTarget.value })}
              >
                <option value="">any</option>
                {field.choices.map((choice) => (
                  <option key={choice} value={choice}>
                    {choice.replaceAll('_', ' ')}
                  </option>
                ))}
              </select>
            ) : (
              <input
                type={field.type ?? 'text'}
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
