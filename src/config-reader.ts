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
  secret(name: string): string | null {
    const value = this.text(name)
    const path = this.text(`${name}_FILE`)
    if (path === null) return value
    if (value !== null) {
      this.fault(name, `and ${name}_FILE are both given: give one`)
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
    return (this.text(name) ?? '')
      .split(',')
      .map((item) => item.trim())
      .filter((item) => item !== '')
  }

  url(name: string, protocols: readonly string[], kind?: 'secret'): string | null {
    const text = kind === 'secret' ? this.secret(name) : this.text(name)
    if (text === null) return null
    if (!URL.canParse(text) || !protocols.includes(new URL(text).protocol)) {
      const schemes = protocols.map((protocol) => `${protocol}//`).join(' or ')
      this.fault(name, `must be a URL that starts with ${schemes}`)
      return null
    }
    return text
  }

  /** Drops a trailing slash, so that paths can be appended. */
  baseUrl(name: string): string | null {
    return this.url(name, ['http:', 'https:'])?.replace(/\/+$/, '') ?? null
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
