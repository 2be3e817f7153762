/** What a reader of the description should know before its first operation. */
export const INTRODUCTION = `Every operation but the public ones wants \`Authorization: Bearer <access token>\` or \`X-API-Key\`.

**Errors** all have one shape, with a stable \`code\`. **Lists** are newest first: follow \`next_cursor\` while \`has_more\`.
**Creating** takes an \`Idempotency-Key\`: a repeat within 24 h returns the first answer. **Changing** takes \`If-Match\` with an
\`ETag\` seen before. **Rate limits** are told in \`RateLimit-*\` headers; a 429 says when to come back in \`Retry-After\`.
Every answer carries \`X-Request-Id\`: quote it when you ask for help.

What is no request of any operation is refused in the same shape: an unknown path with 404, an unknown method with 405 and
\`Allow\`, broken HTTP with 400, 408 or 431.`

export const TAGS = [
  { name: 'Projects', description: 'What the work belongs to.' },
  { name: 'Jobs', description: 'Agent runs whose results always land.' },
  { name: 'Callbacks', description: 'What the agent runtime posts when a run ends.' },
  { name: 'Realtime', description: 'What happens, as it happens.' },
  { name: 'Push', description: 'Devices and what is sent to them.' },
  { name: 'Usage', description: 'What was used, per calendar month.' },
  { name: 'Users', description: 'Profiles, made on a user’s first request.' },
  { name: 'Service accounts', description: 'Keys for backends: their own identity, their own rate-limit tier.' },
  { name: 'Operations', description: 'Probes and this description.' },
]
