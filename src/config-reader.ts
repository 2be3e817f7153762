import { BlockList, isIP } from 'node:net'

export type Env = Readonly<Record<string, string | undefined>>

/** Lists every fault of the settings, one line each. */
export class ConfigError extends Error {
  readonly faults: readonly string[]

  constructor(faults: readonly string[]) {
    super(`Bad configuration:\n${faults.map((fault) => `  ${fault}`).join('\n')}`)
    this.name = 'ConfigError'
    this.faults = faults
  }
}

/** A secret with other characters would break every request that carries it, or appear in an error message. */
const SECRET_FORMS = {
  line: { pattern: /^\P{Cc}*$/u, fault: 'must not contain line breaks or control characters' },
  header: { pattern: /^[\x20-\x7e]*$/, fault: 'must be one line of ASCII characters, because a header carries it' },
  block: { pattern: /^/, fault: '' },
}

export type SecretForm = keyof typeof SECRET_FORMS

/** Reads settings one by one and collects every fault, so that the operator can fix all of them at once. */
export class ConfigReader {
  readonly #env: Env
  readonly #readFile: (path: string) => string
  readonly #faults: string[] = []
  readonly #given = new Set<string>()
  /** False for a command that serves no requests. */
  readonly toServe: boolean

  constructor(env: Env, readFile: (path: string) => string, { toServe = false } = {}) {
    this.#env = env
    this.#readFile = readFile
    this.toServe = toServe
  }

  fault(name: string, what: string): void {
    this.#faults.push(`${name} ${what}`)
  }

  throwFaults(): void {
    if (this.#faults.length > 0) throw new ConfigError(this.#faults)
  }

  /** Strict unless `NODE_ENV` is `development` or `test`. */
  get production(): boolean {
    const mode = this.text('NODE_ENV')
    return mode !== 'development' && mode !== 'test'
  }

  /** An empty value counts as absent: compose files and CI systems set unset variables to ''. */
  text(name: string): string | null {
    return this.#env[name]?.trim() || null
  }

  /** The text of a setting. That of a secret may be in the file that `NAME_FILE` points to. */
  read(name: string, form?: SecretForm): string | null {
    const text = form === undefined ? this.text(name) : this.#readSecret(name)
    if (text === null) return null
    this.#given.add(name)
    if (form !== undefined && !SECRET_FORMS[form].pattern.test(text)) this.fault(name, SECRET_FORMS[form].fault)
    return text
  }

  /** Whether a setting that was read before is given. */
  isGiven(name: string): boolean {
    return this.#given.has(name)
  }

  #readSecret(name: string): string | null {
    const value = this.text(name)
    const path = this.text(`${name}_FILE`)
    if (path === null) return value
    if (value !== null) {
      this.fault(name, `and ${name}_FILE are both set: set only one`)
      return value
    }
    try {
      const content = this.#readFile(path).trim()
      if (content === '') this.fault(`${name}_FILE`, `points to an empty file: ${path}`)
      return content || null
    } catch (error) {
      const code = (error as NodeJS.ErrnoException).code ?? 'unreadable'
      this.fault(`${name}_FILE`, `cannot be read (${code}): ${path}`)
      return null
    }
  }
}

/** Turns the text of a setting into its value. Null means the default. A wrong text also records a fault. */
export type Kind<Value> = (text: string | null, name: string, read: ConfigReader) => Value | null

export function anyText(text: string | null): string | null {
  return text
}

export function integer(range: { min: number; max?: number }): Kind<number> {
  return (text, name, read) => {
    if (text === null) return null
    const value = Number(text)
    if (/^\d+$/.test(text) && value >= range.min && value <= (range.max ?? Number.MAX_SAFE_INTEGER)) return value
    const bounds = range.max === undefined ? `of at least ${range.min}` : `from ${range.min} to ${range.max}`
    read.fault(name, `must be a whole number ${bounds}, not "${text}"`)
    return null
  }
}

export function choice<const Choice extends string>(...choices: readonly Choice[]): Kind<Choice> {
  return (text, name, read) => {
    const found = choices.find((one) => one === text) ?? null
    if (found === null && text !== null) read.fault(name, `must be one of ${choices.join(', ')}, not "${text}"`)
    return found
  }
}

export const flag: Kind<boolean> = (...given) => {
  const word = choice('true', 'false', '1', '0')(...given)
  return word === null ? null : word === 'true' || word === '1'
}

/** Items that are separated by commas. */
export function list(text: string | null): readonly string[] {
  const items = (text ?? '').split(',').map((item) => item.trim())
  return items.filter((item) => item !== '')
}

/** IP addresses or CIDR ranges. */
export const networks: Kind<readonly string[]> = (text, name, read) => {
  const items = list(text)
  for (const item of items) {
    if (!isNetwork(item)) read.fault(name, `holds "${item}", which is neither an IP address nor a CIDR range`)
  }
  return items
}

/** A URL of one of these protocols. It may contain a password, so it is a secret. */
export function secretUrl(...protocols: readonly string[]): Kind<string> {
  return (text, name, read) => {
    if (text === null) return null
    // `URL` alone would also accept `http:host` and `http:/\\host`.
    const isWhole = protocols.some((protocol) => text.toLowerCase().startsWith(`${protocol}//`))
    if (isWhole && URL.canParse(text)) return text
    const schemes = protocols.map((protocol) => `${protocol}//`).join(' or ')
    read.fault(name, `must be a URL that starts with ${schemes}`)
    return null
  }
}

/** An http or https URL. It is not secret and may be shown, so it must not contain a password. */
export const url: Kind<string> = (text, name, read) => {
  const whole = secretUrl('http:', 'https:')(text, name, read)
  if (whole === null) return null
  const { username, password } = new URL(whole)
  if (username !== '' || password !== '') read.fault(name, 'must not contain a user name or a password')
  else if (/[\s\p{Cc}]/u.test(whole)) read.fault(name, 'must not contain blanks, line breaks or control characters')
  else return whole
  return null
}

/** A URL to which paths can be appended. */
export const urlPrefix: Kind<string> = (text, name, read) => {
  const whole = url(text, name, read)
  if (whole === null || !/[?#]/.test(whole)) return whole
  read.fault(name, 'must not contain a query or a fragment, because paths are appended to it')
  return null
}

/** The same without a trailing slash. */
export const baseUrl: Kind<string> = (...given) => urlPrefix(...given)?.replace(/\/+$/, '') ?? null

function isNetwork(text: string): boolean {
  const [address = '', prefix, ...rest] = text.split('/')
  const family = isIP(address)
  if (family === 0 || rest.length > 0) return false
  if (prefix === undefined) return true
  if (!/^\d+$/.test(prefix)) return false
  try {
    new BlockList().addSubnet(address, Number(prefix), family === 4 ? 'ipv4' : 'ipv6')
    return true
  } catch {
    return false
  }
}
