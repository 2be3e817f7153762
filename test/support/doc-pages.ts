import { globSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

export const ROOT = fileURLToPath(new URL('../../', import.meta.url))
const PAGES = ['*.md', 'docs/*.md', 'docs/adr/*.md', 'docs/runbooks/*.md', 'client/README.md']

export interface Page {
  /** From the root of the repository. */
  path: string
  text: string
}

/** Every page of the documentation. */
export function readPages(): Page[] {
  return globSync(PAGES, { cwd: ROOT })
    .sort()
    .map((path) => ({ path, text: readFileSync(`${ROOT}${path}`, 'utf8') }))
}

/** The text outside of code blocks. */
export function proseOf({ text }: Page): string {
  return text.replace(/^ *```[\s\S]*?^ *```$/gm, '')
}

export interface ShellBlock {
  page: string
  script: string
}

export function shellBlocksOf({ path, text }: Page): ShellBlock[] {
  const blocks = text.matchAll(/^ *```(?:sh|bash|shell|console)\n([\s\S]*?)^ *```$/gm)
  return Array.from(blocks, ([, script = '']) => ({ page: path, script }))
}

/** True if all commands only call a running `dev`, so that a test can run them unchanged. */
export function isForDev({ script }: ShellBlock): boolean {
  return commandsOf(script).every((command) => /^curl .*\$(?:API|RUNTIME)\//s.test(command))
}

/** The commands of a script, without comments and line continuations. */
export function commandsOf(script: string): string[] {
  return script
    .replaceAll('\\\n', ' ')
    .split(/\n(?! )|\s(?:&&|\|)\s/)
    .map((command) => command.replace(/(?:^|\s)#.*$/, '').trim())
    .filter((command) => command !== '')
}
