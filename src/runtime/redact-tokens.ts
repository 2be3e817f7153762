/**
 * Redacts the token in callback URLs that the runtime echoes, so that stored texts and logs cannot be used to post
 * callbacks. In JSON and in nested URLs the characters around it may be escaped. Other URLs keep their tokens: they may
 * be output. The token that the callback came with (`own`) is redacted everywhere.
 */
export function withoutTokens(text: string, own?: string): string {
  return (own === undefined ? text : withoutOwn(text, own)).replace(TOKEN, '$1[redacted]')
}

function withoutOwn(text: string, token: string): string {
  if (!/\\u00[2-7]/.test(text)) return text.replaceAll(token, '[redacted]')
  // JSON within a text has more backslashes before each escape. A run of backslashes is read once, from its start.
  const spellings = Array.from(token, (char) => `(?:${char}|(?<!\\\\)\\\\+u00${char.charCodeAt(0).toString(16)})`)
  return text.replace(new RegExp(spellings.join(''), 'gi'), '[redacted]')
}

// The pattern starts with a fixed word, so that the search is fast.
const PATH = String.raw`(?<=/|\\u002f|%2f)webhooks(?:\\?/|\\u002f|%2f)`
// No further path may come before the token. Without this rule, a text full of paths would take quadratic time.
const QUERY = String.raw`(?:(?!${PATH})[^"\s]){0,500}?(?:[?&]|\\u0026|\\u003f|%26|%3f)`
const TOKEN = new RegExp(String.raw`(${PATH}${QUERY}token(?:=|\\u003d|%3d))[^"&\\\s%#]+`, 'gi')
