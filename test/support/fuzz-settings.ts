/** The settings of a fuzz run: the same cases every time, unless the environment asks for a longer or another run. */
export interface FuzzSettings {
  seed: number
  /** For each operation. */
  cases: number
}

const DEFAULTS: FuzzSettings = { seed: 20_260_131, cases: 150 }

export function fuzzSettings(): FuzzSettings {
  return {
    seed: wholeNumber('FUZZ_SEED') ?? DEFAULTS.seed,
    cases: wholeNumber('FUZZ_CASES') ?? DEFAULTS.cases,
  }
}

function wholeNumber(name: string): number | undefined {
  const text = process.env[name]
  if (text === undefined) return undefined
  const value = Number(text)
  if (!Number.isSafeInteger(value)) throw new Error(`${name} must be a whole number`)
  return value
}
