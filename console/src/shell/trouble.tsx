import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { Link } from 'wouter-preact'
import { DependencyDetail } from '../pages/dependency-detail.tsx'
import { useReadiness } from '../pages/readiness.ts'
import { DEAD_SERVICE_RUNBOOK, runbookFor } from '../pages/runbooks/runbook-names.ts'
import { Moment } from '../ui/time.tsx'

/** The banner of every page: says what is wrong with the service, since when, and where its runbook is. */
export function Trouble() {
  const isOffline = useIsOffline()
  const { data, error, dataUpdatedAt } = useReadiness()
  const opened = useRef(new Date().toISOString())
  if (isOffline) {
    return <Banner>This browser is offline. The page shows old data, and actions do not work.</Banner>
  }
  if (error) {
    const since = dataUpdatedAt === 0 ? opened.current : new Date(dataUpdatedAt).toISOString()
    return (
      <Banner>
        <strong>The service does not answer.</strong> The page shows old data, and actions do not work. Last answer:{' '}
        <Moment at={since} />. <Runbook name={DEAD_SERVICE_RUNBOOK} />
      </Banner>
    )
  }
  const checks = data?.checks ?? {}
  const faults = Object.entries(checks).filter(([, { state }]) => state !== 'ok')
  if (faults.length === 0) return null
  return (
    <Banner isMild={faults.every(([, { state }]) => state === 'degraded')}>
      <ul class="bullets">
        {faults.map(([name, { state, detail, since }]) => (
          <li key={name}>
            <strong>
              {name.replaceAll('_', ' ')}: {state}
            </strong>
            {detail && (
              <>
                , <DependencyDetail detail={detail} />
              </>
            )}
            {since && (
              <>
                , since <Moment at={since} />
              </>
            )}
            . <Runbook name={runbookFor(name, checks)} />
          </li>
        ))}
      </ul>
    </Banner>
  )
}

function Banner({ isMild = false, children }: { isMild?: boolean; children: ComponentChildren }) {
  return (
    <div class={isMild ? 'notice wait' : 'notice bad'} role="alert">
      {children}
    </div>
  )
}

function Runbook({ name }: { name: string | undefined }) {
  return name === undefined ? <Link href="/runbooks">Runbooks</Link> : <Link href={`/runbooks/${name}`}>Runbook</Link>
}

function useIsOffline(): boolean {
  const [isOffline, setOffline] = useState(!navigator.onLine)
  useEffect(() => {
    const update = () => setOffline(!navigator.onLine)
    addEventListener('online', update)
    addEventListener('offline', update)
    return () => {
      removeEventListener('online', update)
      removeEventListener('offline', update)
    }
  }, [])
  return isOffline
}
