import { useState } from 'preact/hooks'
import { isSentExactly, parseExact } from '../exact-json.ts'

export interface Schema {
  type?: string
  title?: string
  description?: string
  enum?: unknown[]
  minimum?: number
  maximum?: number
  properties?: Record<string, Schema>
  required?: string[]
}

interface SchemaFormProps {
  schema: Schema | null
  value: unknown
  /** Undefined for an optional field that is empty. It is not sent. */
  onChange: (value: unknown) => void
  label?: string
  isOptional?: boolean
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
export function SchemaForm({
  schema,
  value,
  onChange,
  label = schema?.title ?? 'Answer',
  isOptional = false,
}: SchemaFormProps) {
  if (schema?.enum) {
    const choices = schema.enum
    const firstChoice = isOptional ? 1 : 0
    return (
      <Labelled label={label} isOptional={isOptional} hint={schema.description}>
        <select
          value={value === undefined ? '' : JSON.stringify(value)}
          onChange={(event) => onChange(choices[event.currentTarget.selectedIndex - firstChoice])}
        >
          {isOptional && <option value="">Not set</option>}
          {choices.map((choice) => (
            <option key={JSON.stringify(choice)} value={JSON.stringify(choice)}>
              {typeof choice === 'string' ? choice : JSON.stringify(choice)}
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
      <Labelled label={label} isOptional={isOptional} hint={schema.description}>
        <input
          value={String(value ?? '')}
          onInput={({ currentTarget: { value: text } }) => onChange(isOptional && text === '' ? undefined : text)}
        />
      </Labelled>
    )
  }
  if (schema?.type === 'number' || schema?.type === 'integer') {
    return <NumberField {...{ schema, label, value, onChange, isOptional }} />
  }
  if (schema?.type === 'object' && schema.properties) {
    const fields = value as Record<string, unknown> | undefined
    const change = (name: string, next: unknown) => {
      const changed = { ...(fields ?? (initialValue(schema) as object)), [name]: next }
      onChange(isOptional && Object.values(changed).every(isEmpty) ? undefined : changed)
    }
    // The required fields of an optional object are required only if another field of it is filled in.
    const isAbsent = isOptional && fields === undefined
    return (
      <div class="stack">
        {Object.entries(schema.properties).map(([name, field]) => (
          <SchemaForm
            key={name}
            schema={field}
            label={field.title ?? name}
            value={fields?.[name]}
            onChange={(next) => change(name, next)}
            isOptional={isAbsent || schema.required?.includes(name) !== true}
          />
        ))}
      </div>
    )
  }
  return <JsonBox {...{ label, value, onChange, isOptional }} />
}

function isEmpty(value: unknown): boolean {
  return value === undefined || value === null || value === '' || value === false
}

type FieldProps = Required<Omit<SchemaFormProps, 'schema'>>

/** The number is read from its text, because the browser's own number field changes long numbers. */
function NumberField({ schema, ...field }: FieldProps & { schema: Schema }) {
  const { input, problem } = useTyped(field, {
    read: (text) => parseExact(text.trim()),
    problemOf: (text) => problemOfNumber(text.trim(), schema),
  })
  // The number pad of an iPhone has no minus sign.
  const inputMode = schema.minimum !== undefined && schema.minimum >= 0 ? 'decimal' : 'text'
  return (
    <Labelled label={field.label} isOptional={field.isOptional} hint={schema.description} problem={problem}>
      <input {...input} inputMode={inputMode} autocomplete="off" />
    </Labelled>
  )
}

function JsonBox(field: FieldProps) {
  const { input, problem } = useTyped(field, { read: fromText, problemOf: problemOfJson })
  return (
    <Labelled
      label={field.label}
      isOptional={field.isOptional}
      hint="JSON, or plain text. Text that is not JSON is sent as a string."
      problem={problem}
    >
      <textarea {...input} rows={3} />
    </Labelled>
  )
}

interface TextReader {
  read: (text: string) => unknown
  /** Why the text cannot be sent. */
  problemOf: (text: string) => string | null
}

type TextEvent = preact.TargetedEvent<HTMLInputElement | HTMLTextAreaElement>

/**
 * Keeps the text as the operator types it. Its problem is shown when the form is sent, not when the field is left: a
 * message at that moment would move the button away from the pointer that clicks it.
 */
function useTyped({ value, onChange, isOptional }: FieldProps, { read, problemOf }: TextReader) {
  const [text, setText] = useState(() => (value === null || value === undefined ? '' : JSON.stringify(value)))
  const [isRefused, setRefused] = useState(false)
  const problem = isRefused && !(isOptional && text === '') ? problemOf(text) : null
  const input = {
    required: !isOptional,
    value: text,
    'aria-invalid': problem !== null,
    onInvalid: (event: TextEvent) => {
      // The browser's own bubble would cover the message below the field.
      event.preventDefault()
      event.currentTarget.form?.querySelector<HTMLElement>(':is(input, textarea):invalid')?.focus()
      setRefused(true)
    },
    onInput: ({ currentTarget }: TextEvent) => {
      const typed = currentTarget.value
      // The browser itself refuses an empty field that is required.
      const found = typed === '' ? null : problemOf(typed)
      currentTarget.setCustomValidity(found ?? '')
      setText(typed)
      if (typed === '') onChange(isOptional ? undefined : null)
      else onChange(found === null ? read(typed) : null)
    },
  }
  return { input, problem }
}

const JSON_NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/
const WOULD_CHANGE =
  'This browser would change a number that you typed. Update the browser, or send the answer with the API.'

/** Compares the rounded number, as the service does when it checks the answer. The number that is sent is exact. */
function problemOfNumber(text: string, { type, minimum, maximum }: Schema): string | null {
  const rounded = Number(text)
  // 1e400 is a whole number, but it is infinite when it is rounded.
  const hasFraction = Number.isFinite(rounded) && !Number.isInteger(rounded)
  if (type === 'integer' && (hasFraction || !JSON_NUMBER.test(text))) return 'Type a whole number, for example 12.'
  if (!JSON_NUMBER.test(text)) return 'Type a number, for example 12, -0.5 or 1e6.'
  if (minimum !== undefined && rounded < minimum) return `Type a number of at least ${minimum}.`
  if (maximum !== undefined && rounded > maximum) return `Type a number of at most ${maximum}.`
  return isSentExactly(text) ? null : WOULD_CHANGE
}

function problemOfJson(text: string): string | null {
  if (text === '') return 'Type an answer.'
  return typeof fromText(text) === 'string' || isSentExactly(text) ? null : WOULD_CHANGE
}

function fromText(text: string): unknown {
  try {
    return parseExact(text)
  } catch {
    return text
  }
}

interface LabelledProps {
  label: string
  isOptional: boolean
  hint?: string | undefined
  problem?: string | null
  children: preact.ComponentChildren
}

function Labelled({ label, isOptional, hint, problem, children }: LabelledProps) {
  return (
    <label class="field">
      <span>
        {label} {isOptional && <span class="muted">(optional)</span>}
      </span>
      {children}
      {problem && (
        <small class="problem" role="alert">
          {problem}
        </small>
      )}
      {hint && <small class="muted">{hint}</small>}
    </label>
  )
}
