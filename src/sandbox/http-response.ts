import type { Json } from '../core/json.ts'

/** A whole response of a sandbox server. Without a content type in its headers, the body is JSON. */
export interface HttpResponse {
  status: number
  headers?: Record<string, string>
  body: string
}

export function json(status: number, value: Json, headers: Record<string, string> = {}): HttpResponse {
  return { status, headers, body: JSON.stringify(value) }
}

export function text(status: number, body: string): HttpResponse {
  return { status, headers: { 'content-type': 'text/plain;charset=UTF-8' }, body }
}
