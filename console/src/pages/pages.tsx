import type { ComponentType } from 'preact'
import { useOperator } from '../api/operator.ts'
import { AuditPage } from './audit.tsx'
import { CallbacksPage } from './callbacks.tsx'
import { FailuresPage } from './failures.tsx'
import { FindPage } from './find.tsx'
import { JobPage } from './job/job-page.tsx'
import { JobTypesPage } from './job-types.tsx'
import { JobsPage } from './jobs/jobs-page.tsx'
import { KeysPage } from './keys.tsx'
import { OperationsPage } from './operations.tsx'
import { OverviewPage } from './overview.tsx'
import { PeoplePage } from './people/people-page.tsx'
import { PersonPage } from './people/person-page.tsx'
import { PushPage } from './push.tsx'
import { RunbookPage } from './runbooks/runbook-page.tsx'
import { SettingsPage } from './settings.tsx'
import { WaitingPage } from './waiting.tsx'
import { EndpointPage } from './webhooks/endpoint-page.tsx'
import { WebhooksPage } from './webhooks/webhooks-page.tsx'

export interface PageEntry {
  path: string
  /** Null: not in the navigation. */
  title: string | null
  /** The permission that the operator needs besides `read:operations`. */
  needs?: 'mayAct' | 'mayReadUsers'
  // biome-ignore lint/suspicious/noExplicitAny: the router passes each page its own parameters
  component: ComponentType<any>
}

/** The pages of the console, in the order of the navigation. */
const PAGES: readonly PageEntry[] = [
  { path: '/', title: 'Overview', component: OverviewPage },
  { path: '/jobs', title: 'Jobs', component: JobsPage },
  { path: '/jobs/:id', title: null, component: JobPage },
  { path: '/find/:id', title: null, component: FindPage },
  { path: '/failures', title: 'Failures', component: FailuresPage },
  { path: '/waiting', title: 'Waiting for answers', component: WaitingPage },
  { path: '/callbacks', title: 'Callbacks', component: CallbacksPage },
  { path: '/push', title: 'Push', component: PushPage },
  { path: '/webhooks', title: 'Webhooks', component: WebhooksPage },
  { path: '/webhooks/:id', title: null, component: EndpointPage },
  { path: '/people', title: 'People', needs: 'mayReadUsers', component: PeoplePage },
  { path: '/people/:sub', title: null, needs: 'mayReadUsers', component: PersonPage },
  { path: '/keys', title: 'Keys', needs: 'mayAct', component: KeysPage },
  { path: '/operations', title: 'Bulk operations', component: OperationsPage },
  { path: '/job-types', title: 'Job types', component: JobTypesPage },
  { path: '/settings', title: 'Settings', component: SettingsPage },
  { path: '/audit', title: 'Audit', component: AuditPage },
  { path: '/runbooks', title: 'Runbooks', component: RunbookPage },
  { path: '/runbooks/:name', title: null, component: RunbookPage },
]

/** The pages that the operator may open. */
export function usePages(): readonly PageEntry[] {
  const { operator } = useOperator()
  return PAGES.filter(({ needs }) => needs === undefined || operator[needs])
}
