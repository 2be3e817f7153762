import { Link } from 'wouter-preact'

const PUSH_REASON = /; operators find the reason at \/v1\/push$/

/** What `/readyz` says about a dependency. An operator gets a link to a page in place of the address for a program. */
export function DependencyDetail({ detail }: { detail: string }) {
  if (!PUSH_REASON.test(detail)) return <>{detail}</>
  return (
    <>
      {detail.replace(PUSH_REASON, '')}; the reason is on the page <Link href="/push">Push</Link>
    </>
  )
}
