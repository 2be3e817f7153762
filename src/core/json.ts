/** JSON values as this service reads them. Documents are not read: they stay text. */
export const MAX_JSON_DEPTH = 100

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json }
export type JsonObject = { [key: string]: Json }

export function isJsonObject(value: unknown): value is JsonObject {
  return value !== null && typeof value === 'object' && !Array.isArray(value)
}
