/** Every bound of the HTTP server in one place: nothing a client does, or leaves undone, holds a connection for ever. */
export const SERVER_LIMITS = {
  /** A body anywhere but on the callback routes. */
  bodyLimit: 1024 * 1024,
  /** The whole request must have arrived by then. */
  requestTimeout: 30_000,
  /** A socket that says nothing for so long is closed. */
  connectionTimeout: 60_000,
  /** Longer than the 60 s of common load balancers, so that they, not we, close idle connections. */
  keepAliveTimeout: 72_000,
  http: {
    headersTimeout: 15_000,
    /** Room for a token that is far too long, beside other headers, so that it is refused as a token: with 401. */
    maxHeaderSize: 32 * 1024,
    connectionsCheckingInterval: 5_000,
    // Node would refuse with an empty body; our first hook refuses with an envelope.
    requireHostHeader: false,
  },
  maxHeadersCount: 100,
  /** More than any parameter's schema allows (a `sub` may have 255), so that the schema, not the router, has the word. */
  routerOptions: { maxParamLength: 1024 },
} as const

/**
 * Connections that may wait to be accepted. Those beyond are dropped by the system without a word, and their clients try
 * again only after a second or more: a burst must not come to that before we can even refuse it.
 */
export const LISTEN_BACKLOG = 4_096
