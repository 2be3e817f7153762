import { join } from 'node:path'
import { type Browser, type BrowserContext, type BrowserContextOptions, chromium, type Page } from 'playwright-core'
import { atEnd } from './at-end.ts'
import { findChromium } from './binaries.ts'
import { PATIENCE_MS, START_PATIENCE_MS } from './patience.ts'
import { ServerProcess, startOnFreePort } from './server-process.ts'
import { isCi } from './services.ts'

const DISABLED_FEATURES = [
  // Playwright's own list, which the list below replaces.
  'AvoidUnnecessaryBeforeUnloadCheckSync',
  'DestroyProfileOnBrowserClose',
  'HttpsUpgrades',
  'HttpsFirstBalancedModeAutoEnable',
  'LensOverlay',
  'MediaRouter',
  'PaintHolding',
  'ThirdPartyStoragePartitioning',
  'AvoidCorsURLLoaderRestartOnRedirect',
  'OptimizationHints',
  'NetworkTimeServiceQuerying',
  'AimEnabled',
  'PreconnectToSearch',
  // The suggestions of the address bar are web pages of the browser. They take ten times as long as a page of a test.
  'WebUIOmniboxPopup',
  'WebUIOmniboxAimPopup',
]
const SWITCHES = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  `--disable-features=${DISABLED_FEATURES.join(',')}`,
]
const LOOPBACK = new Set(['127.0.0.1', 'localhost', '[::1]'])

/** Options for a test that needs a real browser. */
export function needsChromium(): { skip: string | false } {
  const missing = findChromium() === undefined
  return { skip: missing && !isCi() && 'needs Chromium, which is not installed' }
}

export interface WatchedPage {
  page: Page
  /** Problems that a correct page never causes: errors, violations of its own policy, requests that leave this machine. */
  complaints: string[]
}

export interface PageOptions {
  size?: keyof typeof SIZES
  theme?: 'light' | 'dark'
}

/** The tablet is the narrowest one, held upright. */
export const SIZES = {
  desktop: { width: 1280, height: 900 },
  tablet: { width: 768, height: 1024 },
  phone: { width: 390, height: 844 },
}

/** Opens a page in a browser that reaches only this machine, and records every problem on it. */
export async function openPage(url: string, { size = 'desktop', theme = 'light' }: PageOptions = {}) {
  const context = await newContext({ viewport: SIZES[size], colorScheme: theme })
  const watched: WatchedPage = { page: await context.newPage(), complaints: [] }
  const complain = (complaint: string) => watched.complaints.push(complaint)
  // Requests to this machine are not intercepted: one that is under way when the page closes could fail the test.
  await context.route(isElsewhere, (route) => {
    complain(`asked for ${route.request().url()}`)
    return route.abort()
  })
  await context.exposeFunction('reportViolation', (violation: string) => complain(`refused ${violation}`))
  await context.addInitScript(`addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI }) =>
    reportViolation(violatedDirective + ' ' + blockedURI))`)
  const { page } = watched
  page.on('pageerror', (error) => complain(`threw ${error}`))
  page.on('requestfailed', (request) => {
    // When a page is left, the browser aborts its requests.
    if (request.failure()?.errorText !== 'net::ERR_ABORTED') complain(`failed to get ${request.url()}`)
  })
  page.on('response', (response) => {
    if (response.status() >= 400) complain(`got ${response.status()} for ${response.url()}`)
  })
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complain(`logged ${message.text()}`)
  })
  page.setDefaultTimeout(PATIENCE_MS)
  await page.goto(url)
  return watched
}

/**
 * Loads another address in a page that an earlier test used, without the routes of that test and with a new list of
 * complaints. A new context would start another process of the browser, which takes more time than most tests.
 */
export async function reopenPage(watched: WatchedPage, url: string, options: PageOptions = {}): Promise<void> {
  const { size = 'desktop', theme = 'light' } = options
  const { page } = watched
  await page.unrouteAll()
  await page.goto('about:blank')
  watched.complaints = []
  await page.setViewportSize(SIZES[size])
  await page.emulateMedia({ colorScheme: theme })
  await page.goto(url)
}

/** The complaints besides those about a deleted record: until the page is left, it may read the record once more. */
export function besidesDeleted(complaints: readonly string[], id: string): string[] {
  return complaints.filter(
    (complaint) =>
      !(complaint.startsWith('got 404 ') && complaint.includes(id)) && !/^logged .*status of 404/.test(complaint),
  )
}

function isElsewhere({ protocol, hostname }: URL): boolean {
  return protocol !== 'data:' && protocol !== 'blob:' && !LOOPBACK.has(hostname)
}

/**
 * A browser with a profile of its own, as a user starts it: with the notifications of the desktop at this D-Bus address,
 * and without Playwright's defaults, by which no page is ever hidden.
 */
export async function startUserBrowser(desktop: string): Promise<BrowserContext> {
  const server = new ServerProcess('test-browser')
  atEnd(() => server.stop())
  const port = await startOnFreePort((port) =>
    server.start({
      command: 'env',
      args: [
        `HOME=${server.folder}`,
        `DBUS_SESSION_BUS_ADDRESS=${desktop}`,
        executable(),
        ...SWITCHES,
        `--user-data-dir=${join(server.folder, 'profile')}`,
        `--remote-debugging-port=${port}`,
        // The page for new tabs takes long to load: Playwright waits for ever if it connects in between.
        'about:blank',
      ],
      ready: /DevTools listening/,
      stopSignal: 'SIGKILL',
    }),
  )
  const connected = await chromium.connectOverCDP(`http://127.0.0.1:${port}`, {
    noDefaults: true,
    timeout: START_PATIENCE_MS,
  })
  atEnd(() => connected.close())
  const [context] = connected.contexts()
  if (context === undefined) throw new Error('The browser has no profile')
  context.setDefaultTimeout(PATIENCE_MS)
  return context
}

let browser: Promise<Browser> | undefined

export async function newContext(options: BrowserContextOptions): Promise<BrowserContext> {
  browser ??= launch()
  return (await browser).newContext(options)
}

function launch(): Promise<Browser> {
  return chromium.launch({ executablePath: executable(), args: SWITCHES, timeout: START_PATIENCE_MS })
}

function executable(): string {
  const path = findChromium()
  if (path === undefined) throw new Error('Chromium is not installed (looked for chromium and google-chrome)')
  return path
}

atEnd(async () => (await browser)?.close())
