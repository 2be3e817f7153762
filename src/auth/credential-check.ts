/**
 * Begins a check that costs work: of a signature, or of a key in the database. Returns the function that ends it, or null
 * if the address of the caller has used up its failed checks.
 */
export type BeginCheck = () => EndCheck | null
export type EndCheck = (hasFailed: boolean) => void

/** The result for a credential that could not be checked. */
export const UNCHECKED = 'unchecked'

export const endNothing: EndCheck = () => {}
export const beginAlways: BeginCheck = () => endNothing
