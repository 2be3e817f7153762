import { Link } from 'wouter-preact'
import { Markdown } from '../../ui/markdown.tsx'
import { PageHead } from '../../ui/page-head.tsx'
import { Empty } from '../../ui/states.tsx'
import { RUNBOOKS } from './runbooks.ts'

/** What to do in each kind of trouble. */
export function RunbookPage({ params: { name = 'overview' } }: { params: { name?: string } }) {
  const text = RUNBOOKS[name]
  if (text === undefined) {
    return (
      <Empty title="No such runbook">
        <Link href="/runbooks">All runbooks</Link>
      </Empty>
    )
  }
  return (
    <>
      <PageHead title={/^# (.+)$/m.exec(text)?.[1] ?? name}>
        {name !== 'overview' && <Link href="/runbooks">All runbooks</Link>}
      </PageHead>
      <article class="runbook">
        <Markdown text={text} hrefOf={hrefOf} />
      </article>
    </>
  )
}

/** Links between runbooks stay in the console. It has no other page of the documentation. */
function hrefOf(target: string): string | null {
  const name = /^([\w-]+)\.md(#.*)?$/.exec(target)?.[1]
  if (name === undefined || !(name in RUNBOOKS)) return null
  return name === 'overview' ? '/runbooks' : `/runbooks/${name}`
}
