import { ApiError } from '../core/errors.ts'
import type { App } from './app-instance.ts'

/** Answers are private: shared caches must not store them, and the client's cache must ask again before using them. */
export function forbidSharedCaching(app: App): void {
  app.addHook('onRequest', (request, reply, done) => {
    const isRead = request.method === 'GET' || request.method === 'HEAD'
    if (request.principal && isRead) reply.header('cache-control', 'private, no-cache')
    done()
  })
}

/** A record's version as a strong ETag. */
export function etagOf(version: number): string {
  return `"${version}"`
}

/**
 * The versions that an `If-Match` header allows; null (any version) if it is absent or `*`. Weak tags never match (RFC
 * 9110). A header that is not a list of tags is a 400.
 */
export function readIfMatch(header: string | undefined): readonly number[] | null {
  if (header === undefined || header.trim() === '*') return null
  const tags = readTags('if-match', header)
  return tags.filter((tag) => /^"(?:0|[1-9]\d{0,14})"$/.test(tag)).map((tag) => Number(tag.slice(1, -1)))
}

/** Whether the client has this version already, by its `If-None-Match`. Weak tags match too (RFC 9110). */
export function isNotModified(header: string | undefined, version: number): boolean {
  if (header === undefined) return false
  if (header.trim() === '*') return true
  return readTags('if-none-match', header).some((tag) => tag.replace(/^W\//, '') === etagOf(version))
}

function readTags(name: string, header: string): string[] {
  const tags = header.split(',').map((tag) => tag.trim())
  if (tags.every((tag) => /^(W\/)?"[\x21\x23-\x7e]*"$/.test(tag))) return tags
  throw new ApiError('invalid_request', `headers/${name} must be * or a list of ETags, such as "3"`)
}

export function preconditionFailed(): ApiError {
  return new ApiError('precondition_failed', 'The record has changed since the version named by If-Match')
}
