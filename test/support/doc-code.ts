import assert from 'node:assert/strict'
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { freshFolder } from './program.ts'

const ROOT = new URL('../../', import.meta.url)

/** The code blocks of a page whose first line is a comment with a file name, by that name. */
export function codeBlocksOf(page: string): Map<string, string> {
  const text = readFileSync(new URL(page, ROOT), 'utf8')
  const blocks = Array.from(text.matchAll(/^```\w+\n(?:\/\/|<!--|#) (\S+\.\w+)(?: -->)?\n([\s\S]*?)^```$/gm))
  const named = new Map(blocks.map(([, name = '', code = '']) => [name, code]))
  assert.ok(named.size > 0, `${page} has no code with a file name`)
  assert.equal(named.size, blocks.length, `${page} names two blocks alike`)
  return named
}

/** Writes the code blocks of a page to a folder, as its reader does. `edit` changes what the reader has to fill in. */
export function writeCodeOf(page: string, edit: (code: string, name: string) => string = (code) => code): string {
  const folder = freshFolder()
  for (const [name, code] of codeBlocksOf(page)) {
    mkdirSync(dirname(join(folder, name)), { recursive: true })
    writeFileSync(join(folder, name), edit(code, name))
  }
  return folder
}

export const repositoryPath = (path: string) => fileURLToPath(new URL(path, ROOT))
