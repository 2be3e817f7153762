import { useState } from 'preact/hooks'

export interface Schema {
  type?: string
  title?: string
  description?: string
  enum?: unknown[]
  properties?: Record<string, Schema>
  required?: string[]
}

interface SchemaFormProps {
  schema: Schema | null
  value: unknown
  onChange: (value: unknown) => void
  label?: string
}

export function initialValue(schema: Schema | null): unknown {
  if (schema?.enum) return schema.enum[0]
  if (schema?.type === 'boolean') return false
  if (schema?.type === 'string') return ''
  if (schema?.type === 'object' && schema.properties) {
    const required = new Set(schema.required)
    const entries = Object.entries(schema.properties).filter(([name]) => required.has(name))
    return Object.fromEntries(entries.map(([name, field]) => [name, initialValue(field)]))
  }
  return null
}

/** A form for the simple schemas of most questions. For any other schema it shows a text box for JSON. */
export function SchemaForm({ schema, value, onChange, label = schema?.title ?? 'Answer' }: SchemaFormProps) {
  if (schema?.enum) {
    return (
      <Labelled label={label} hint={schema.description}>
        <select value={JSON.stringify(value)} onChange={(event) => onChange(JSON.parse(event.currentTarget.value))}>
          {schema.enum.map((choice) => (
            <option key={JSON.stringify(choice)} value={JSON.stringify(choice)}>
              {String(choice)}
            </option>
          ))}
        </select>
      </Labelled>
    )
  }
  if (schema?.type === 'boolean') {
    return (
      <label class="actions">
        <input type="checkbox" checked={value === true} onChange={(event) => onChange(event.currentTarget.checked)} />
        {label}
      </label>
    )
  }
  if (schema?.type === 'string') {
    return (
      <Labelled label={label} hint={schema.description}>
        <input value={String(value ?? '')} onInput={(event) => onChange(event.currentTarget.value)} />
      </Labelled>
    )
  }
  if (schema?.type === 'number' || schema?.type === 'integer') {
    return (
      <Labelled label={label} hint={schema.description}>
        <input
          type="number"
          required
          step={schema.type === 'integer' ? 1 : 'any'}
          value={typeof value === 'number' ? value : ''}
          onInput={(event) => onChange(event.currentTarget.valueAsNumber)}
        />
      </Labelled>
    )
  }
  if (schema?.type === 'object' && schema.properties) {
    const fields = value as Record<string, unknown> | null
    return (
      <div class="stack">
        {Object.entries(schema.properties).map(([name, field]) => (
          <SchemaForm
            key={name}
            schema={field}
            label={field.title ?? name}
            value={fields?.[name]}
            onChange={(next) => onChange({ ...fields, [name]: next })}
          />
        ))}
      </div>
    )
  }
  return <JsonBox label={label} value={value} onChange={onChange} />
}

function JsonBox({ label, value, onChange }: { label: string; value: unknown; onChange: (value: unknown) => void }) {
  const [text, setText] = useState(() => (value === null || value === undefined ? '' : JSON.stringify(value)))
  return (
    <Labelled label={label} hint="JSON, or plain text. Text that is not JSON is sent as a string.">
      <textarea
        rows={3}
        required
        value={text}
        onInput={(event) => {
          const written = event.currentTarget.value
          setText(written)
          onChange(fromText(written))
        }}
      />
    </Labelled>
  )
}

function fromText(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

function Labelled(props: { label: string; hint?: string | undefined; children: preact.ComponentChildren }) {
  return (
    <label class="field">
      <span>{props.label}</span>
      {props.children}
      {props.hint && <small class="muted">{props.hint}</small>}
    </label>
  )
}
