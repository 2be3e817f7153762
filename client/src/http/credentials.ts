/** Returns the access token. `refresh` is true when the service refused the last token: fetch a new one. */
export type TokenProvider = (request: { refresh: boolean }) => string | Promise<string>

export interface CredentialOptions {
  /** An access token, or a function that returns one. The client calls it for each request, so it should cache. */
  token?: string | TokenProvider
  /** The key of a service account. */
  apiKey?: string
}

/** The headers that identify the caller. Requests that fail together share one refresh of the token. */
export class Credentials {
  readonly #provider: TokenProvider | undefined
  readonly #apiKey: string | undefined
  #refreshing: Promise<string> | undefined

  constructor({ token, apiKey }: CredentialOptions) {
    this.#provider = typeof token === 'string' ? () => token : token
    this.#apiKey = apiKey
  }

  async token(): Promise<string | null> {
    return this.#provider ? (this.#refreshing ?? this.#provider({ refresh: false })) : null
  }

  /** A token other than the refused one; null if there is none. */
  async refresh(refused: string | null): Promise<string | null> {
    if (refused === null || !this.#provider) return null
    const current = await this.token()
    if (current !== refused) return current
    this.#refreshing ??= Promise.resolve(this.#provider({ refresh: true })).finally(() => {
      this.#refreshing = undefined
    })
    const fresh = await this.#refreshing
    return fresh === refused ? null : fresh
  }

  headers(token: string | null): Record<string, string> {
    return {
      ...(token !== null && { authorization: `Bearer ${token}` }),
      ...(this.#apiKey !== undefined && { 'x-api-key': this.#apiKey }),
    }
  }
}
