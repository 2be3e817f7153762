import { systemClock } from '../../core/clock.ts'
import { isJsonObject } from '../../core/json.ts'
import type { CommandLine } from '../io.ts'
import type { ServiceClient } from './service-client.ts'

const RECONNECT_MS = 500

interface Tail {
  line: CommandLine
  service: ServiceClient
  json: boolean
}

/**
 * Prints the events of all jobs from now on, until the command is interrupted. The service ends each stream after a while;
 * the next one continues where it ended.
 */
export async function tailEvents({ line, service, json }: Tail): Promise<void> {
  const { stopping } = line
  let after: string | null = null
  while (!stopping.aborted) {
    let isOpen = false
    try {
      const seen: Record<string, string> = after === null ? {} : { 'last-event-id': after }
      for await (const { id, data } of readEvents(service.stream('/v1/events?all=true', seen))) {
        isOpen = true
        after = id ?? after
        if (data !== null) print(line, json, data)
      }
    } catch (error) {
      // A stream that breaks is resumed. A service that does not answer, or refuses the key, ends the command.
      if (!isOpen && !stopping.aborted) throw error
    }
    await systemClock.sleep(RECONNECT_MS, stopping)
  }
}

/** Server-sent events as this service writes them: one line a field. A mark has an id and no data. */
async function* readEvents(pieces: AsyncIterable<string>): AsyncGenerator<{ id: string | null; data: string | null }> {
  let [rest, id, data] = ['', null, null] as [string, string | null, string | null]
  for await (const piece of pieces) {
    const lines = `${rest}${piece}`.split('\n')
    rest = lines.pop() ?? ''
    for (const text of lines) {
      if (text.startsWith('id: ')) id = text.slice('id: '.length)
      else if (text.startsWith('data: ')) data = text.slice('data: '.length)
      if (text !== '') continue
      yield { id, data }
      id = null
      data = null
    }
  }
}

function print(line: CommandLine, json: boolean, text: string): void {
  const { type, created_at: at, data } = JSON.parse(text) as { type: string; created_at: string; data: unknown }
  if (type === 'reset') line.printError(`${at}  some events are missing here`)
  if (!isJsonObject(data) || typeof data.job_id !== 'string') return
  const { job_id, status, settled_by } = data
  if (json) line.print(JSON.stringify({ at, type, job_id, status, settled_by }))
  else line.print([at, job_id, type, status, settled_by ?? ''].join('  ').trimEnd())
}
