const MAX_EDITS = 2

/** The name that was probably meant: one that begins with the text, or differs from it by two letters at most. */
export function didYouMean(text: string, names: readonly string[]): string | undefined {
  const ranked = names.map((name) => ({
    name,
    edits: text.length > 1 && name.startsWith(text) ? 0 : edits(text, name),
  }))
  const [best] = ranked.sort((one, other) => one.edits - other.edits)
  return best && best.edits <= Math.min(MAX_EDITS, text.length - 1) ? best.name : undefined
}

/** How many letters must be added, removed, replaced or swapped with their neighbour. */
function edits(from: string, to: string): number {
  const rows = Array.from({ length: from.length + 1 }, (_, row) => [row])
  const at = (row: number, column: number) => rows[row]?.[column] ?? 0
  for (let column = 1; column <= to.length; column++) rows[0]?.push(column)
  for (let row = 1; row <= from.length; row++) {
    for (let column = 1; column <= to.length; column++) {
      const same = from[row - 1] === to[column - 1] ? 0 : 1
      const swapped = row > 1 && column > 1 && from[row - 1] === to[column - 2] && from[row - 2] === to[column - 1]
      const costs = [at(row - 1, column) + 1, at(row, column - 1) + 1, at(row - 1, column - 1) + same]
      if (swapped) costs.push(at(row - 2, column - 2) + 1)
      rows[row]?.push(Math.min(...costs))
    }
  }
  return at(from.length, to.length)
}
