import { existsSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import type { MarkdownRenderer } from 'vitepress'

const PAGES = /^(?:[A-Z_]+|docs\/(?!site\/).+)\.md$/
const DOWNLOADS = /^docs\/[^/]+\.json$/

/** Links to pages and downloads work. Links to other files of the repository, which the site does not have, become their text. */
export function pageLinks(md: MarkdownRenderer, root: string): void {
  md.core.ruler.push('page-links', ({ tokens, env }) => {
    const page: string = env.realPath ?? env.path
    for (const { children } of tokens) {
      const opened: boolean[] = []
      for (const token of children ?? []) {
        if (token.type === 'link_open') {
          const href = token.attrGet('href') ?? ''
          const isLink = keeps(href, page, root)
          opened.push(isLink)
          if (isLink) token.attrSet('href', href.replace(/README\.md/, 'index.md'))
          else token.type = 'text'
        } else if (token.type === 'link_close' && opened.pop() === false) token.type = 'text'
      }
    }
  })
}

function keeps(href: string, page: string, root: string): boolean {
  if (/^[a-z]+:|^#/.test(href)) return true
  const [path = ''] = href.split('#')
  const file = relative(root, join(dirname(page), path))
  return PAGES.test(file) || DOWNLOADS.test(file) || !existsSync(join(root, file))
}

/** Mermaid code is kept as text, for the theme to draw. */
export function pictures(md: MarkdownRenderer): void {
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (tokens, index, ...rest) => {
    const token = tokens[index]
    if (token?.info.trim() !== 'mermaid') return fence?.(tokens, index, ...rest) ?? ''
    return `<pre class="picture" v-pre>${md.utils.escapeHtml(token.content)}</pre>`
  }
}

/** The empty corner of a table is a plain cell: a header without a name confuses screen readers. */
export function emptyHeaders(md: MarkdownRenderer): void {
  md.core.ruler.push('empty-headers', ({ tokens }) => {
    for (const [index, token] of tokens.entries()) {
      const [text, close] = [tokens[index + 1], tokens[index + 2]]
      if (token.type !== 'th_open' || text?.content !== '' || close?.type !== 'th_close') continue
      token.tag = 'td'
      close.tag = 'td'
    }
  })
}
