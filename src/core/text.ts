/**
 * Text that both engines can store: no NUL (PostgreSQL refuses it) and no unpaired surrogate (UTF-8 cannot express it). The
 * API refuses other text, on both engines, instead of altering it.
 */
export function isStorableText(text: string): boolean {
  return !text.includes('\u0000') && text.isWellFormed()
}

/** Makes text from outside storable: a character that cannot be stored becomes U+FFFD, and a text that is too long is cut. */
export function asStorableText(text: string, maxLength: number): string {
  const storable = text.replaceAll('\u0000', '\ufffd').toWellFormed()
  return storable.length <= maxLength ? storable : `${storable.slice(0, maxLength - 1).toWellFormed()}…`
}

/** Decodes `%20` and the like. A text that is not encoded, such as `100%`, stays as it is. */
export function decodePercents(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
