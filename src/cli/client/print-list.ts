import { writeJson } from '../../core/json/json-text.ts'
import type { CommandLine } from '../io.ts'

interface ListOptions<Item> {
  json: boolean
  /** Absent: all items. */
  limit?: number
  show: (item: Item) => string
  /** What an empty list says. */
  none: string
}

/** Prints one line for each item. An empty list says so on standard error: the output itself is only the list. */
export async function printList<Item>(
  line: CommandLine,
  items: AsyncIterable<Item> | Iterable<Item>,
  { json, limit = Number.POSITIVE_INFINITY, show, none }: ListOptions<Item>,
): Promise<void> {
  let printed = 0
  for await (const item of items) {
    line.print(json ? writeJson(item) : show(item))
    printed += 1
    if (printed >= limit) break
  }
  if (printed === 0) line.printError(none)
}
