/** Secret values that must not leak, and all output of the service while they were in use. */
export class Canaries {
  readonly #secrets = new Map<string, string>()
  readonly #said: { where: string; text: string }[] = []

  /** Watches a value from now on; short ones would be found by chance. */
  watch(name: string, secret: string): string {
    if (secret.length < 16) throw new Error(`${name} is too short to be looked for`)
    this.#secrets.set(name, secret)
    return secret
  }

  hear(where: string, text: string): void {
    this.#said.push({ where, text })
  }

  get heard(): number {
    return this.#said.length
  }

  /** Every leaked secret, unchanged or in another encoding, with its place. */
  findLeaks(): string[] {
    return this.#said.flatMap(({ where, text }) =>
      [...this.#secrets].flatMap(([name, secret]) =>
        spellingsOf(secret)
          .filter((spelling) => text.includes(spelling))
          .map((spelling) => `${name} in ${where}: …${excerpt(text, spelling)}…`),
      ),
    )
  }
}

function spellingsOf(secret: string): string[] {
  const bytes = Buffer.from(secret)
  const spellings = [
    secret,
    JSON.stringify(secret).slice(1, -1),
    encodeURIComponent(secret),
    bytes.toString('hex'),
    // Without its end, which depends on the bytes after it.
    bytes.toString('base64').slice(0, -4),
    bytes.toString('base64url').slice(0, -4),
  ]
  return [...new Set(spellings)]
}

function excerpt(text: string, found: string): string {
  const at = text.indexOf(found)
  return text.slice(Math.max(0, at - 80), at + found.length + 20)
}
