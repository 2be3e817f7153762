/** The port to addresses that callers chose: `EgressClient` is the real one, the simulation has its own. */
export interface EgressPoster {
  /** Rejects if there is no whole answer. */
  post(request: EgressRequest): Promise<EgressAnswer>
  /** Ends the requests in flight. */
  close(): void
}

export interface EgressRequest {
  url: string
  headers: Readonly<Record<string, string>>
  body: string
}

export interface EgressAnswer {
  status: number
  retryAfter: string | undefined
  /** The first 1 KB of the body. */
  text: string
}

/** Of all endpoints on one host, in one process. */
export const MAX_PER_HOST = 10

/** A failure whose message is a sentence for the operator. */
export class EgressError extends Error {
  constructor(message: string) {
    super(message)
    this.name = 'EgressError'
  }
}

/** A sentence for the operator about a failed request. Addresses and messages of libraries are only in the log. */
export function sentenceOfFailure(error: unknown): string {
  if (error instanceof EgressError) return error.message
  const { code = '' } = error instanceof Error ? (error as NodeJS.ErrnoException) : {}
  if (/^(?:ENOTFOUND|EAI_|ETIMEOUT$)/.test(code)) return 'the host name cannot be resolved'
  if (/CERT|TLS|SSL|UNABLE_TO/.test(code)) return 'the TLS connection failed: is the certificate valid?'
  return 'the connection failed'
}
