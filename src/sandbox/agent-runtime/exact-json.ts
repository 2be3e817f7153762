import type { Json } from '../../core/json.ts'

// V8 gives the reviver the source text of each number, and writes a raw number back digit by digit.
const { rawJSON } = JSON as unknown as { rawJSON(text: string): Json }

/** Parses JSON so that `JSON.stringify` writes every number with its original digits. */
export function parseExactJson(text: string): Json {
  return JSON.parse(text, keepDigits as never) as Json
}

function keepDigits(_key: string, value: unknown, { source }: { source?: string }): unknown {
  if (typeof value !== 'number' || source === undefined) return value
  return JSON.stringify(value) === source ? value : rawJSON(source)
}
