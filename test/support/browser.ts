import { after } from 'node:test'
import { type Browser, type BrowserContext, chromium, type Page } from 'playwright-core'
import { findChromium } from './binaries.ts'
import { isCi } from './services.ts'

const SWITCHES = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]
const LOOPBACK = new Set(['127.0.0.1', 'localhost', '[::1]'])
const PATIENCE_MS = 20_000

/** Options for a test that needs a real browser. */
export function needsChromium(): { skip: string | false } {
  const missing = findChromium() === undefined
  return { skip: missing && !isCi() && 'needs Chromium, which is not installed' }
}

export interface WatchedPage {
  page: Page
  /** All that a careful page never causes: errors, refusals by its own policy, requests that leave this machine. */
  complaints: string[]
}

/** Opens a page in a browser that reaches this machine alone, and notes whatever goes wrong on it. */
export async function openPage(url: string): Promise<WatchedPage> {
  const complaints: string[] = []
  const context = await newContext()
  await context.route('**/*', async (route) => {
    const asked = route.request().url()
    if (isLocal(asked)) return route.continue()
    complaints.push(`asked for ${asked}`)
    return route.abort()
  })
  await context.exposeFunction('reportViolation', (violation: string) => complaints.push(`refused ${violation}`))
  await context.addInitScript(`addEventListener('securitypolicyviolation', ({ violatedDirective, blockedURI }) =>
    reportViolation(violatedDirective + ' ' + blockedURI))`)
  const page = await context.newPage()
  page.on('pageerror', (error) => complaints.push(`threw ${error}`))
  page.on('requestfailed', (request) => complaints.push(`failed to get ${request.url()}`))
  page.on('response', (response) => {
    if (response.status() >= 400) complaints.push(`got ${response.status()} for ${response.url()}`)
  })
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type())) complaints.push(`logged ${message.text()}`)
  })
  page.setDefaultTimeout(PATIENCE_MS)
  await page.goto(url)
  return { page, complaints }
}

function isLocal(url: string): boolean {
  const { protocol, hostname } = new URL(url)
  return protocol === 'data:' || protocol === 'blob:' || LOOPBACK.has(hostname)
}

let browser: Promise<Browser> | undefined

async function newContext(): Promise<BrowserContext> {
  browser ??= launch()
  return (await browser).newContext({ viewport: { width: 1280, height: 900 } })
}

function launch(): Promise<Browser> {
  const executablePath = findChromium()
  if (executablePath === undefined) throw new Error('Chromium is not installed (looked for chromium and google-chrome)')
  return chromium.launch({ executablePath, args: SWITCHES, timeout: PATIENCE_MS })
}

after(async () => (await browser)?.close())
