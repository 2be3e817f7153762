/**
 * What the pages of the console show: every page, on every screen, in both themes, for every role. `console-pages.test.ts`
 * follows it. A button of a page that is not listed here fails the test, and so does a listed one that is missing.
 */

export const SCREENS = ['desktop', 'tablet', 'phone'] as const
export type Screen = (typeof SCREENS)[number]

export type Role = 'admin' | 'support' | 'watcher'

/** The roles of operators, with the entries that their navigation lacks. */
export const ROLES: Record<Role, { scopes: readonly string[]; lacks: readonly string[] }> = {
  admin: { scopes: ['admin:*'], lacks: [] },
  support: { scopes: ['read:operations', 'read:users'], lacks: ['Keys'] },
  watcher: { scopes: ['read:operations'], lacks: ['Keys', 'People'] },
}

/**
 * The name of a button or checkbox, and the title of the dialog that it opens; null: it opens none, or another page has the
 * same dialog. `*` is any text.
 */
type Controls = Readonly<Record<string, string | null>>

export interface PageCheck {
  /** `{name}` is the id of an object that the test has made. */
  path: string
  title: string
  /** The entry of the navigation that the roles need for this page. Others are led to the overview. */
  entry?: string
  /** Controls that change nothing: every role has them. */
  reads?: Controls
  /** Controls that only an admin has. */
  actions?: Controls
}

const FILTERED = { 'Clear filters': null }
const DOCUMENTS = { 'Copy Input': null, 'Copy Output': null, 'Copy as curl': null }
const CALLBACKS = { 'Show the body of *': 'cbk_*' }
const RETRY = 'Retry: * job*'
const ANSWER = { 'Send the answer': null, 'Publish it': null }

export const PAGES: readonly PageCheck[] = [
  { path: '/', title: 'Overview' },
  { path: '/jobs', title: 'Jobs', actions: { 'Select *': null } },
  {
    path: '/jobs?status=failed&type=failing',
    title: 'Jobs',
    reads: { ...FILTERED, 'Save this view': 'Save this view' },
    actions: { 'Select *': null, Retry: RETRY, Cancel: 'Cancel: * job*', 'Check now': 'Check now: * job*' },
  },
  {
    path: '/jobs/{completed}',
    title: 'report job',
    reads: { ...DOCUMENTS, ...CALLBACKS },
    actions: { Retry: 'Retry this job?', Delete: 'Delete this job?' },
  },
  {
    path: '/jobs/{failed}',
    title: 'failing job',
    reads: { 'Copy Input': null, 'Copy as curl': null, 'Show the body of *': null },
    actions: { Retry: null, Delete: null },
  },
  {
    path: '/jobs/{waiting}',
    title: 'review job',
    reads: { 'Copy Input': null, 'Copy as curl': null, 'Show the body of *': null },
    actions: { ...ANSWER, 'Check now': null, Cancel: 'Cancel this job?' },
  },
  { path: '/failures', title: 'Failures', actions: { 'Retry all of these: *': RETRY } },
  { path: '/waiting', title: 'Waiting for answers', actions: ANSWER },
  { path: '/callbacks', title: 'Callbacks', reads: CALLBACKS, actions: { 'Replay *': null } },
  {
    path: '/callbacks?type=report',
    title: 'Callbacks',
    reads: { ...FILTERED, 'Show the body of *': null },
    actions: { 'Replay cbk_*': null, 'Replay all that fit these filters': 'Replay: * callback*' },
  },
  { path: '/push', title: 'Push', actions: { 'Send a test': 'Send a test', 'Resend *': null } },
  { path: '/webhooks', title: 'Webhooks', actions: { 'New endpoint': 'New webhook endpoint' } },
  {
    path: '/webhooks/{endpoint}',
    title: 'Webhook endpoint',
    reads: { '* attempt* of *': 'Attempts of *' },
    actions: {
      Test: null,
      Recover: 'Recover',
      Edit: 'Edit the endpoint',
      'Rotate the secret': 'Rotate the secret?',
      Disable: 'Disable this endpoint?',
      Delete: 'Delete this endpoint?',
      'Resend *': null,
    },
  },
  { path: '/people', title: 'People', entry: 'People' },
  { path: '/people?search=someone', title: 'People', entry: 'People', reads: FILTERED },
  {
    path: '/people/{ada}',
    title: 'ada@example.com',
    entry: 'People',
    actions: { Export: null, Limits: 'Limits per month', Block: 'Block this user?', Erase: 'Erase this user?' },
  },
  {
    path: '/people/long-user',
    title: '{longEmail}',
    entry: 'People',
    actions: { Export: null, Limits: null, Block: null, Erase: null },
  },
  {
    path: '/keys',
    title: 'Keys',
    entry: 'Keys',
    actions: {
      'New service account': 'New service account',
      'Rotate the key of *': 'Rotate the key of *?',
      'Revoke *': 'Revoke *?',
    },
  },
  { path: '/operations', title: 'Bulk operations' },
  { path: '/job-types', title: 'Job types', reads: { 'Copy * schema': null } },
  { path: '/settings', title: 'Settings' },
  { path: '/audit', title: 'Audit', reads: { 'Show aud_*': '*' } },
  { path: '/find/00000000-0000-4000-8000-000000000000', title: 'Find' },
  { path: '/runbooks', title: 'Runbooks' },
  { path: '/runbooks/disk', title: 'Disk' },
]
