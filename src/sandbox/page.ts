import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { shippedFile } from '../shipped-files.ts'

const SHELL = read('page.html')
/** For pages with fault settings and tables. */
const PANEL = read('panel.html')

interface PageSource {
  /** The page's own title, markup, style and script; a path below `src/sandbox`. */
  file: string
  isPanel?: boolean
}

/** Becomes `config` in the page's script. */
type PageConfig = Readonly<Record<string, unknown>>

export interface PageResponse {
  status: 200
  headers: Record<string, string>
  body: string
}

/** Every page of the sandbox has the same style, loads no other files, and runs only its own script. */
export function preparePage({ file, isPanel = false }: PageSource): (config: PageConfig) => PageResponse {
  const content = isPanel ? PANEL + read(file) : read(file)
  const template = SHELL.replace('__CONTENT__', () => content)
  return (config) => {
    const nonce = randomBytes(16).toString('base64')
    // Escaped, so that no value can end the script element it is written into.
    const embedded = JSON.stringify(config).replaceAll('<', '\\u003c')
    const body = template.replaceAll('__NONCE__', nonce).replace('"__CONFIG__"', () => embedded)
    return { status: 200, headers: headersFor(nonce), body }
  }
}

function headersFor(nonce: string): Record<string, string> {
  const policy = [
    "default-src 'none'",
    `style-src 'nonce-${nonce}'`,
    `script-src 'nonce-${nonce}'`,
    "connect-src 'self'",
    'img-src data:',
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ]
  return {
    'content-type': 'text/html; charset=utf-8',
    'content-security-policy': policy.join('; '),
    'cache-control': 'no-store',
    'referrer-policy': 'no-referrer',
  }
}

function read(file: string): string {
  return readFileSync(shippedFile(`src/sandbox/${file}`), 'utf8')
}
