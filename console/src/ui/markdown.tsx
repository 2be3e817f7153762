import type { ComponentChildren } from 'preact'
import { Link } from 'wouter-preact'

/** Shows the Markdown that runbooks use: headings, paragraphs, lists, tables, code, bold text and links. */
export function Markdown({ text, hrefOf }: { text: string; hrefOf: (target: string) => string | null }) {
  return <>{blocksOf(text).map((lines) => block(lines, (line) => inline(line, hrefOf)))}</>
}

type Inline = (text: string) => ComponentChildren
type Line = readonly [kind: keyof typeof BLOCKS, text: string]

const BLOCKS = {
  code: /^```/,
  heading: /^#+ /,
  bullet: /^- /,
  step: /^\d+\. /,
  row: /^\|/,
  text: /./,
}

/** Lines of the same kind that follow each other are one block. */
function blocksOf(text: string): Line[][] {
  const blocks: Line[][] = []
  let isCode = false
  for (const line of text.split('\n')) {
    const kinds = Object.keys(BLOCKS) as (keyof typeof BLOCKS)[]
    const kind = isCode ? 'code' : kinds.find((one) => BLOCKS[one].test(line))
    const last = blocks.at(-1)
    const isFence = BLOCKS.code.test(line)
    if (kind === undefined) blocks.push([])
    else if (last?.[0]?.[0] === kind && kind !== 'heading' && !(isFence && !isCode)) last.push([kind, line])
    else blocks.push([[kind, line]])
    if (isFence) isCode = !isCode
  }
  return blocks.filter((lines) => lines.length > 0)
}

function block(lines: readonly Line[], show: Inline): ComponentChildren {
  const [[kind, first] = ['text', '']] = lines
  const texts = lines.map(([, text]) => text)
  if (kind === 'code') return <pre>{texts.slice(1, -1).join('\n')}</pre>
  if (kind === 'heading') {
    const title = first.replace(/^#+ /, '')
    return first.startsWith('## ') ? <h2>{title}</h2> : null
  }
  const items = () => texts.map((text) => <li key={text}>{show(text.replace(/^(-|\d+\.) /, ''))}</li>)
  if (kind === 'bullet') return <ul class="bullets">{items()}</ul>
  // A list that goes on after a block of code keeps its numbers.
  if (kind === 'step') return <ol start={Number.parseInt(first, 10)}>{items()}</ol>
  if (kind === 'row') return table(texts, show)
  return <p>{show(texts.join(' '))}</p>
}

function table([head = '', , ...rows]: readonly string[], show: Inline): ComponentChildren {
  const cells = (row: string) => row.slice(1, -1).split(/(?<!\\)\|/)
  return (
    <div class="table-frame">
      <table>
        <thead>
          <tr>
            {cells(head).map((cell) => (
              <th key={cell} scope="col">
                {show(cell.trim())}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row}>
              {cells(row).map((cell) => (
                <td key={cell}>{show(cell.trim())}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

/** A link without a page in the console shows only its text. */
function inline(text: string, hrefOf: (target: string) => string | null): ComponentChildren {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)]+\))/).map((part) => {
    if (part.startsWith('`')) return <code>{part.slice(1, -1)}</code>
    if (part.startsWith('**')) return <strong>{part.slice(2, -2)}</strong>
    const [, label, target = ''] = /^\[(.+)\]\((.+)\)$/.exec(part) ?? []
    if (label === undefined) return part
    const href = hrefOf(target)
    return href === null ? label : <Link href={href}>{label}</Link>
  })
}
