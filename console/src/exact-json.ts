/** A number kept as its text, because JavaScript would change it. */
export class ExactNumber {
  readonly source: string

  constructor(source: string) {
    this.source = source
  }

  /** `JSON.stringify` writes it without quotes if the browser supports that. */
  toJSON(): unknown {
    const { rawJSON } = JSON as { rawJSON?: (text: string) => unknown }
    return rawJSON ? rawJSON(this.source) : this.source
  }
}

/** Only these numbers can change when they are parsed: many digits, an exponent, a fraction, a negative zero. */
const MAY_CHANGE = /\d{16}|\d[eE.]|-0/

/** `JSON.parse` that keeps every digit. Browsers without source text access parse numbers as usual. */
export function parseExact(text: string): unknown {
  if (!MAY_CHANGE.test(text)) return JSON.parse(text)
  const keep = (_key: string, value: unknown, context?: { source?: string }) => {
    const source = context?.source
    return typeof value === 'number' && source !== undefined && String(value) !== source
      ? new ExactNumber(source)
      : value
  }
  return JSON.parse(text, keep as (this: unknown, key: string, value: unknown) => unknown)
}

/** False if this browser would change a number of this JSON. Browsers without `JSON.rawJSON` write only rounded numbers. */
export function isSentExactly(json: string): boolean {
  if ('rawJSON' in JSON) return true
  const numbers = json.replace(/"(?:[^"\\]|\\.)*"/g, '').match(/-?\d[\d.eE+-]*/g) ?? []
  return numbers.every((number) => String(Number(number)) === number)
}
