import type { JsonPart } from '../../src/core/json/json-part.ts'
import { JsonScan } from '../../src/core/json/json-scan.ts'
import { type Wanted, WHOLE } from '../../src/core/json/wanted.ts'

/** A JSON text as the scanner reports it. */
export function scanText(text: string, wanted: Wanted = WHOLE): JsonPart {
  const scan = new JsonScan(text, { wanted })
  scan.advance(Number.POSITIVE_INFINITY)
  return scan.root
}

/** A value as the scanner reports it once it has been sent. */
export function partOf(value: unknown, wanted: Wanted = WHOLE): JsonPart {
  return scanText(JSON.stringify(value), wanted)
}
