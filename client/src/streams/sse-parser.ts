/** The lines between two blank lines of a stream. */
export interface SseBlock {
  /** The id to resume after. */
  id: string
  event: string
  /** Null for a block without data, such as one that only sets the id. */
  data: string | null
}

/** Longer than any message of the service. */
const MAX_UNREAD_CHARS = 16 * 1024 * 1024

/** Reads server-sent events, by the rules of the HTML standard, from text that arrives in pieces of any length. */
export class SseParser {
  /** The last valid `retry`. It counts from its line on, even if its block never ends. */
  retryMs: number | null = null
  #unread: string[] = []
  #unreadChars = 0
  /** The last piece ended with CR: an LF at the start of the next one belongs to it. */
  #endedWithCr = false
  #id = ''
  #lines: [name: string, value: string][] = []

  feed(piece: string): SseBlock[] {
    if (piece === '') return []
    const text = this.#endedWithCr && piece.startsWith('\n') ? piece.slice(1) : piece
    this.#endedWithCr = piece.endsWith('\r')
    this.#unreadChars += text.length
    if (this.#unreadChars > MAX_UNREAD_CHARS) throw new Error('A line of the stream is too long')
    this.#unread.push(text)
    // Joined once per line, not once per piece: a long line may arrive in many pieces.
    if (!/[\r\n]/.test(text)) return []
    const lines = this.#unread.join('').split(/\r\n?|\n/)
    const rest = lines.pop() ?? ''
    this.#unread = [rest]
    this.#unreadChars = rest.length
    return lines.flatMap((line) => this.#readLine(line))
  }

  #readLine(line: string): SseBlock[] {
    if (line === '') return this.#lines.length === 0 ? [] : [this.#takeBlock()]
    const [, name = '', value = ''] = /^([^:]*):? ?(.*)$/s.exec(line) ?? []
    if (name === 'retry' && /^\d+$/.test(value)) this.retryMs = Number(value)
    const isIgnored = name === 'id' && value.includes('\0')
    if (name !== '' && !isIgnored) this.#lines.push([name, value])
    return []
  }

  #takeBlock(): SseBlock {
    const valuesOf = (wanted: string) => this.#lines.flatMap(([name, value]) => (name === wanted ? [value] : []))
    const data = valuesOf('data')
    this.#id = valuesOf('id').at(-1) ?? this.#id
    const event = valuesOf('event').at(-1) || 'message'
    this.#lines = []
    return { id: this.#id, event, data: data.length === 0 ? null : data.join('\n') }
  }
}
