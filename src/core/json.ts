/** JSON values that this service parses. Documents are never parsed: they stay text. */
export const MAX_JSON_DEPTH = 100

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json }
export type JsonObject = { [key: string]: Json }

export function isJsonObject(value: unknown): value is JsonObject {
  return value !== null && typeof value === 'object' && !Array.isArray(value)
}
