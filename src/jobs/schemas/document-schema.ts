import { createContext, Script } from 'node:vm'
import type { ErrorObject } from 'ajv'
import { Ajv2020 } from 'ajv/dist/2020.js'
import equal from 'ajv/dist/runtime/equal.js'
import { hasMoreValues } from '../../core/json/json-scan.ts'
import type { JsonText } from '../../core/json/json-text.ts'
import { asStorableText } from '../../core/text.ts'
import { describeFaultAt } from '../../http/validation.ts'

export type SchemaJson = boolean | { readonly [keyword: string]: unknown }

/** More values would block the event loop for too long, with any schema. A long text is one value. */
export const MAX_CHECKED_VALUES = 50_000
const MAX_FAULT_LENGTH = 300
/**
 * A check that takes more processor time is aborted: a reference or a pattern can make the work grow much faster than the
 * document.
 */
const CHECK_MS = 40
/**
 * The time of the attempt after a slow one. Time that the host took from a virtual machine counts as processor time, so a
 * document that is checked in a millisecond can seem slow once.
 */
const LAST_CHECK_MS = 8
/** On a machine so busy that the check hardly runs. */
const MAX_ATTEMPTS = 20
/** Below this product of both lengths, a schema without references and patterns is checked in a few milliseconds. */
const MAX_UNLIMITED_WORK = 4_000_000

/** The JSON Schema of a document. The check parses a copy: the document itself keeps its exact text. */
export class DocumentSchema {
  readonly json: SchemaJson
  /** Documents up to this length are checked without a time limit. A time limit needs a thread per check, about 0.1 ms. */
  readonly #maxUnlimited: number
  #validate: ReturnType<Ajv2020['compile']> | undefined

  constructor(json: SchemaJson) {
    this.json = json
    const text = JSON.stringify(json)
    this.#maxUnlimited = /"(?:\$ref|pattern)/.test(text) ? 0 : MAX_UNLIMITED_WORK / text.length
  }

  /** The first fault of the document, after its place: `body/input/title must be string`. Null if it matches. */
  faultOf({ text }: JsonText, place: string): string | null {
    if (hasMoreValues(text, MAX_CHECKED_VALUES)) return `${place} must have at most ${MAX_CHECKED_VALUES} values`
    this.#validate ??= validator().compile(this.json)
    const validate = this.#validate
    const document: unknown = JSON.parse(text)
    const check = () => (validate(document) ? null : describeFaultAt(place, deepest(validate.errors ?? [])))
    const fault = text.length <= this.#maxUnlimited ? check() : withTimeLimit(check, `${place} takes too long to check`)
    return fault === null ? null : asStorableText(fault, MAX_FAULT_LENGTH)
  }
}

const limited: { check?: () => string | null } = {}
const limitedContext = createContext(limited)
const callCheck = new Script('check()')

/**
 * Returns the result of the check, or `tooSlow` if the check needs more than its processor time, twice. An attempt that got
 * less than half of that time, because other programs used the processor, does not count. So other programs alone do not
 * make the service refuse an ordinary document.
 */
export function withTimeLimit(
  check: () => string | null,
  tooSlow: string,
  { usedMs = threadUsedMs, run = runFor } = {},
): string | null {
  limited.check = check
  try {
    let limitMs = CHECK_MS
    for (let attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
      const startedMs = usedMs()
      const result = run(limitMs)
      if (result !== undefined) return result
      if (usedMs() - startedMs <= limitMs / 2) continue
      if (limitMs === LAST_CHECK_MS) break
      limitMs = LAST_CHECK_MS
    }
    return tooSlow
  } finally {
    delete limited.check
  }
}

/** Undefined for an aborted check. */
function runFor(timeout: number): string | null | undefined {
  try {
    return callCheck.runInContext(limitedContext, { timeout }) as string | null
  } catch (error) {
    // A schema that refers to itself without descending into the document overflows the stack before the time is over.
    const isEndless =
      error instanceof RangeError || (error as { code?: string }).code === 'ERR_SCRIPT_EXECUTION_TIMEOUT'
    if (isEndless) return undefined
    throw error
  }
}

/** The processor time of the event loop's thread. */
function threadUsedMs(): number {
  const { user, system } = process.threadCpuUsage()
  return (user + system) / 1_000
}

let ajv: Ajv2020 | undefined

/** Made for the first schema. Formats are only annotations, as the draft says. */
export function validator(): Ajv2020 {
  if (ajv) return ajv
  // For `const`, `enum` and `uniqueItems`. The validator's own function calls the document's `toString` and `valueOf`.
  const replaceable = equal as unknown as { default: typeof isEqual & { code: string } }
  replaceable.default = Object.assign(isEqual, { code: replaceable.default.code })
  ajv = new Ajv2020({
    strict: false,
    validateFormats: false,
    // Otherwise a document would have the fields of every object, such as `constructor`.
    ownProperties: true,
    // 1e400 is a valid number, but it is infinite in the parsed copy.
    strictNumbers: false,
    logger: false,
  })
  return ajv
}

/** Whether two parsed documents are equal. */
function isEqual(a: unknown, b: unknown): boolean {
  if (a === b) return true
  if (typeof a !== 'object' || typeof b !== 'object' || a === null || b === null) return false
  if (Array.isArray(a) !== Array.isArray(b)) return false
  const entries = Object.entries(a)
  const other = b as Record<string, unknown>
  if (entries.length !== Object.keys(b).length) return false
  return entries.every(([name, value]) => Object.hasOwn(b, name) && isEqual(value, other[name]))
}

/**
 * If several alternatives fail, the deepest fault is the most useful; among equally deep ones, the last, which sums them
 * up.
 */
function deepest(errors: readonly ErrorObject[]): ErrorObject | undefined {
  const depthOf = ({ instancePath }: ErrorObject) => instancePath.split('/').length
  return errors.toSorted((a, b) => depthOf(a) - depthOf(b)).at(-1)
}
