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

/** Reads settings one by one and collects every fault, so that the operator can fix all of them at once. */
export class ConfigReader {
  readonly #env: Env
  readonly #readFile: (path: string) => string
  readonly #faults: string[] = []

  constructor(env: Env, readFile: (path: string) => string) {
    this.#env = env
    this.#readFile = readFile
  }

  fault(name: string, what: string): void {
    this.#faults.push(`${name} ${what}`)
  }

  throwFaults(): void {
    if (this.#faults.length > 0) throw new ConfigError(this.#faults)
  }

  /** An empty value counts as absent: compose files and CI systems set unset variables to ''. */
  text(name: string): string | null {
    return this.#env[name]?.trim() || null
  }

  /** The value itself, or the content of the file that `NAME_FILE` points to. */
  secret(name: string, form: keyof typeof SECRET_FORMS = 'line'): string | null {
    const secret = this.#readSecret(name)
    const { pattern, fault } = SECRET_FORMS[form]
    if (secret !== null && !pattern.test(secret)) this.fault(name, fault)
    return secret
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

  integer(name: string, range: { min: number; max?: number }): number | null {
    const text = this.text(name)
    if (text === null) return null
    const value = Number(text)
    const max = range.max ?? Number.MAX_SAFE_INTEGER
    if (!/^\d+$/.test(text) || value < range.min || value > max) {
      const bounds = range.max === undefined ? `of at least ${range.min}` : `from ${range.min} to ${range.max}`
      this.fault(name, `must be a whole number ${bounds}, not "${text}"`)
      return null
    }
    return value
  }

  flag(name: string): boolean | null {
    const text = this.choice(name, ['true', 'false', '1', '0'])
    return text === null ? null : text === 'true' || text === '1'
  }

  choice<const Choice extends string>(name: string, choices: readonly Choice[]): Choice | null {
    const text = this.text(name)
    if (text === null) return null
    const found = choices.find((choice) => choice === text)
    if (found === undefined) this.fault(name, `must be one of ${choices.join(', ')}, not "${text}"`)
    return found ?? null
  }

  list(name: string): readonly string[] {
    return splitList(this.text(name))
  }

  /** An http or https URL. It is not secret and may be shown, so it must not contain a password. */
  url(name: string): string | null {
    const text = this.checkUrl(name, this.text(name), ['http:', 'https:'])
    if (text === null) return null
    const { username, password } = new URL(text)
    if (username !== '' || password !== '') this.fault(name, 'must not contain a user name or a password')
    else if (/[\s\p{Cc}]/u.test(text)) this.fault(name, 'must not contain blanks, line breaks or control characters')
    else return text
    return null
  }

  /** A URL to which paths can be appended. */
  urlPrefix(name: string): string | null {
    const text = this.url(name)
    if (text === null || !/[?#]/.test(text)) return text
    this.fault(name, 'must not contain a query or a fragment, because paths are appended to it')
    return null
  }

  /** The same without a trailing slash. */
  baseUrl(name: string): string | null {
    return this.urlPrefix(name)?.replace(/\/+$/, '') ?? null
  }

  /** A URL that may contain a password. */
  secretUrl(name: string, protocols: readonly string[]): string | null {
    return this.checkUrl(name, this.secret(name), protocols)
  }

  /** Null, and a fault, unless the text is a URL of one of these protocols. */
  checkUrl(name: string, text: string | null, protocols: readonly string[]): string | null {
    if (text === null) return null
    // `URL` alone would also accept `http:host` and `http:/\\host`.
    const isWhole = protocols.some((protocol) => text.toLowerCase().startsWith(`${protocol}//`))
    if (isWhole && URL.canParse(text)) return text
    const schemes = protocols.map((protocol) => `${protocol}//`).join(' or ')
    this.fault(name, `must be a URL that starts with ${schemes}`)
    return null
  }

  /** IP addresses or CIDR ranges. */
  networks(name: string): readonly string[] {
    const items = this.list(name)
    for (const item of items) {
      if (!isNetwork(item)) this.fault(name, `holds "${item}", which is neither an IP address nor a CIDR range`)
    }
    return items
  }
}

/** The items of a text that are separated by commas. */
export function splitList(text: string | null): string[] {
  const items = (text ?? '').split(',').map((item) => item.trim())
  return items.filter((item) => item !== '')
}

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
