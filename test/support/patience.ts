/**
 * How long a test waits for something that must happen. A busy machine needs far less: this only ends a test that would
 * wait for ever.
 */
export const PATIENCE_MS = 120_000
