import type { LineSink } from './log-buffer.ts'

const LEVELS: Readonly<Record<number, string>> = {
  10: 'trace',
  20: 'debug',
  30: 'info',
  40: 'WARN',
  50: 'ERROR',
  60: 'FATAL',
}

/** Turns JSON lines into lines for people, for the terminal of a developer: `12:00:01 WARN  runtime.refused status=503`. */
export class ReadableLog implements LineSink {
  readonly #sink: LineSink

  constructor(sink: LineSink) {
    this.#sink = sink
  }

  write(text: string): void {
    const lines = text.split('\n').filter((line) => line !== '')
    this.#sink.write(lines.map((line) => `${readableLine(line)}\n`).join(''))
  }

  flush(done: (error?: Error) => void): void {
    this.#sink.flush(done)
  }
}

export function readableLine(line: string): string {
  const { level, time, msg, err, ...fields } = JSON.parse(line) as Record<string, unknown>
  const values = Object.entries(fields).map(([name, value]) => `${name}=${shown(value)}`)
  const head = [String(time).slice(11, 19), (LEVELS[Number(level)] ?? String(level)).padEnd(5), msg, ...values].join(
    ' ',
  )
  return err === undefined ? head : `${head}\n${readableError(err as ReadError)}`
}

interface ReadError {
  name?: string
  message?: string
  stack?: string
  cause?: ReadError
}

/** Keeps only the first lines of the stack: where the error happened, not the calls of the framework. */
function readableError({ name, message, stack, cause }: ReadError): string {
  const lines = stack?.split('\n').slice(0, 4) ?? [`${name}: ${message}`]
  const own = lines.map((line) => `         ${line.trim()}`).join('\n')
  return cause ? `${own}\n         caused by\n${readableError(cause)}` : own
}

function shown(value: unknown): string {
  return typeof value === 'string' && /^[^\s"=]+$/.test(value) ? value : JSON.stringify(value)
}
