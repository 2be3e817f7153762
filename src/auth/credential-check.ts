/**
 * Begins a check that costs work: of a signature, or of a key in the database. Returns the function that ends it, or null
 * if the address of the caller has used up its failed checks.
 */
export type BeginCheck = () => ((hasFailed: boolean) => void) | null

/** The result for a credential that could not be checked. */
export const UNCHECKED = 'unchecked'

/** For a credential that is always checked. */
export const beginAlways: BeginCheck = () => () => {}
