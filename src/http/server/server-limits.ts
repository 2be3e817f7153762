/** Every limit of the HTTP server: no client can hold a connection for ever. */
export const SERVER_LIMITS = {
  /** The callback routes have a larger limit. */
  bodyLimit: 1024 * 1024,
  /** The time within which the whole request must arrive. */
  requestTimeout: 30_000,
  /**
   * A connection without any data for this long is closed. So is that of a client that takes nothing of its answer or stream;
   * Node may notice one of these a second period later. Longer than a handler's deadline, and than the pause between the
   * heartbeats of a stream.
   */
  connectionTimeout: 30_000,
  /** Longer than the 60 s of common load balancers, so that the load balancer closes an idle connection first. */
  keepAliveTimeout: 72_000,
  http: {
    headersTimeout: 15_000,
    /** Large enough for a token that is too long, so that it is refused as a token, with 401. */
    maxHeaderSize: 32 * 1024,
    connectionsCheckingInterval: 5_000,
    // Node would answer with an empty body; our first hook answers with an envelope.
    requireHostHeader: false,
  },
  maxHeadersCount: 100,
  /** More than any parameter's schema allows (a `sub` may have 255), so that the schema refuses it, not the router. */
  routerOptions: { maxParamLength: 1024 },
} as const

/**
 * How many connections may wait to be accepted. The system drops further connections silently, and their clients retry only
 * after a second or more. Even a refusal is better than no answer.
 */
export const LISTEN_BACKLOG = 4_096
