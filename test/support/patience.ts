/**
 * How long a test waits for something that must happen. A busy machine needs less. It is shorter than the lease of a job
 * (65 s), so that a test fails when only the end of a lease, and not the heartbeat, frees the jobs of a killed node.
 */
export const PATIENCE_MS = 60_000

/**
 * How long a test waits for a program to start, or to print something. With an empty compile cache beside other starts,
 * a start takes most of a minute. No such wait depends on the lease of a job.
 */
export const START_PATIENCE_MS = 3 * PATIENCE_MS
