/**
 * Text both engines can hold: no NUL (PostgreSQL refuses it) and no unpaired surrogate (UTF-8 cannot express it).
 * What fails this is refused at the door, the same on both engines, rather than altered on the way.
 */
export function isStorableText(text: string): boolean {
  return !text.includes('\u0000') && text.isWellFormed()
}

/** Foreign text made storable and bounded: what cannot be held becomes U+FFFD, what is too long is cut. */
export function asStorableText(text: string, maxLength: number): string {
  const storable = text.replaceAll('\u0000', '\ufffd').toWellFormed()
  return storable.length <= maxLength ? storable : `${storable.slice(0, maxLength - 1).toWellFormed()}…`
}
