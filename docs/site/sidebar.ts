import { readFileSync } from 'node:fs'

interface Group {
  text: string
  items: { text: string; link: string }[]
}

/** The sidebar is the list of docs/README.md: a heading is a group, each line that begins with a link is a page. */
export function sidebarOf(root: string): Group[] {
  const groups: Group[] = []
  for (const line of readFileSync(`${root}docs/README.md`, 'utf8').split('\n')) {
    const heading = /^## (.+)/.exec(line)?.[1]
    if (heading) groups.push({ text: heading, items: [] })
    const [, text = '', file] = /^- \[(.+?)\]\(([^)#]+)\.md\)/.exec(line) ?? []
    if (file) groups.at(-1)?.items.push({ text: text.replaceAll('`', ''), link: linkOf(file) })
  }
  return groups
}

function linkOf(file: string): string {
  return new URL(file, 'file:///docs/').pathname.replace(/README$/, '')
}
