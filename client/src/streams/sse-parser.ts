/** The lines between two blank lines of a stream. */
export interface SseBlock {
  /** The id to resume after. */
  id: string
  event: string
  /** Null for a block that only sets the id or `retryMs`. */
  data: string | null
  retryMs: number | null
}

/** Longer than any message of the service. */
const MAX_UNREAD_CHARS = 16 * 1024 * 1024

/** Reads server-sent events from text that arrives in pieces of any length. */
export class SseParser {
  #unread: string[] = []
  #unreadChars = 0
  #id = ''
  #lines: [name: string, value: string][] = []

  feed(text: string): SseBlock[] {
    this.#unreadChars += text.length
    if (this.#unreadChars > MAX_UNREAD_CHARS) throw new Error('A line of the stream is too long')
    this.#unread.push(text)
    // Joined once per line, not once per piece: a long line may arrive in many pieces.
    if (!/[\r\n]/.test(text)) return []
    // A CR at the end may be half of a line break, so it waits for the next piece.
    const lines = this.#unread.join('').split(/\r\n|\n|\r(?!$)/)
    const rest = lines.pop() ?? ''
    this.#unread = [rest]
    this.#unreadChars = rest.length
    return lines.flatMap((line) => this.#readLine(line))
  }

  #readLine(line: string): SseBlock[] {
    if (line === '') return this.#lines.length === 0 ? [] : [this.#takeBlock()]
    const [, name = '', value = ''] = /^([^:]*):? ?(.*)$/s.exec(line) ?? []
    if (name !== '') this.#lines.push([name, value])
    return []
  }

  #takeBlock(): SseBlock {
    const valuesOf = (wanted: string) => this.#lines.flatMap(([name, value]) => (name === wanted ? [value] : []))
    const data = valuesOf('data')
    const retry = valuesOf('retry').at(-1) ?? ''
    this.#id = valuesOf('id').at(-1) ?? this.#id
    const event = valuesOf('event').at(-1) || 'message'
    this.#lines = []
    return {
      id: this.#id,
      event,
      data: data.length === 0 ? null : data.join('\n'),
      retryMs: /^\d+$/.test(retry) ? Number(retry) : null,
    }
  }
}
