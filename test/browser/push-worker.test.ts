import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { afterEach, before, describe, test } from 'node:test'
import type { BrowserContext, CDPSession, Page } from 'playwright-core'
import { buildFcmMessage } from '../../src/push/fcm/fcm-message.ts'
import type { PushContent } from '../../src/push/push-provider.ts'
import { needsChromium, startUserBrowser } from '../support/browser.ts'
import { type DesktopNotifications, startDesktopNotifications } from '../support/desktop-notifications.ts'
import { type ScriptedServer, startScriptedServer } from '../support/scripted-server.ts'
import { until } from '../support/until.ts'

const WORKER = readFileSync(new URL('../../client/push-worker.js', import.meta.url))
const OWN_WORKER = "importScripts('/push-worker.js')"
const READY: PushContent = { title: 'Ready', body: 'Your report', data: { job_id: 'job_1' }, tag: 'job_1', link: null }
const isLinux = process.platform === 'linux'

/** What FCM delivers to a browser. It writes the link to `click_action`, for workers of the older API. */
function delivered(content: Partial<PushContent> = {}): object {
  const sent = { ...READY, ...content, token: 'a', priority: 'high', ttlSeconds: 60, dryRun: false } as const
  const { notification, data, webpush } = buildFcmMessage(sent, 0).message
  const { link } = webpush.fcm_options ?? {}
  return {
    from: '1',
    fcmMessageId: 'b',
    priority: 'high',
    notification: { ...notification, ...webpush.notification, ...(link && { click_action: link }) },
    data,
    ...(link && { fcmOptions: { link } }),
  }
}

/** The file of the client package, served unchanged. The browser shows its notifications on the desktop of the test. */
describe('the service worker for pushes', {
  skip: needsChromium().skip || (!isLinux && 'needs the notifications of Linux'),
}, () => {
  let site: ScriptedServer
  let desktop: DesktopNotifications
  let context: BrowserContext
  let page: Page
  let devtools: CDPSession
  const registrations = new Map<string, string>()
  const errors: string[] = []

  before(async () => {
    site = await startScriptedServer((response, { path }) => {
      const script = { '/push-worker.js': WORKER, '/own-worker.js': OWN_WORKER }[path]
      response.setHeader('content-type', script === undefined ? 'text/html' : 'text/javascript')
      response.end(script ?? '<!doctype html><title>App</title>')
    })
    desktop = await startDesktopNotifications()
    context = await startUserBrowser(desktop.address)
    await context.grantPermissions(['notifications'], { origin: site.url })
    page = await context.newPage()
    await page.goto(`${site.url}/in-front`)
    devtools = await context.newCDPSession(page)
    devtools.on('ServiceWorker.workerRegistrationUpdated', (updated) => {
      for (const { scopeURL, registrationId } of updated.registrations) registrations.set(scopeURL, registrationId)
    })
    devtools.on('ServiceWorker.workerErrorReported', ({ errorMessage }) => errors.push(errorMessage.errorMessage))
    await devtools.send('ServiceWorker.enable')
    await page.evaluate(async () => {
      await navigator.serviceWorker.register('/push-worker.js')
      await navigator.serviceWorker.ready
    })
  })

  afterEach(async () => {
    await closeOthers()
    await page.evaluate(async () => {
      const workers = await navigator.serviceWorker.getRegistrations()
      const shown = await Promise.all(workers.map((worker) => worker.getNotifications()))
      for (const notification of shown.flat()) notification.close()
    })
    await until(() => desktop.shown.length === 0)
    assert.deepEqual(errors, [])
  })

  async function push(message: object | string, scope = '/'): Promise<void> {
    const data = typeof message === 'string' ? message : JSON.stringify(message)
    const address = `${site.url}${scope}`
    // The browser may report the registration only after the page has its worker.
    await until(() => registrations.has(address))
    const registrationId = registrations.get(address) ?? ''
    await devtools.send('ServiceWorker.deliverPushMessage', { origin: site.url, registrationId, data })
  }

  const untilShown = (...titles: string[]) =>
    until(() => desktop.shown.map(({ title }) => title).join() === titles.join())
  async function closeOthers(): Promise<void> {
    for (const other of context.pages()) if (other !== page) await other.close()
  }
  const untilPageIs = (state: 'visible' | 'hidden') =>
    until(async () => (await page.evaluate(() => document.visibilityState)) === state)
  /** Clicks and answers with the page that this opens. */
  async function open(title: string): Promise<string> {
    const [opened] = await Promise.all([context.waitForEvent('page'), desktop.click(title)])
    await opened.waitForURL(/^http/)
    return opened.url()
  }

  test('a push shows a notification while the page is in front, and while it is hidden', async () => {
    await untilPageIs('visible')
    await push(delivered())
    await untilShown('Ready')
    assert.match(desktop.shown[0]?.body ?? '', /Your report$/)

    await context.newPage()
    await untilPageIs('hidden')
    await push(delivered({ title: 'Failed', tag: 'job_2' }))
    await untilShown('Ready', 'Failed')
  })

  test('a click opens the link, in whichever field FCM delivers it, and closes the notification', async () => {
    const link = `${site.url}/jobs/job_1`
    for (const message of [
      delivered({ link }),
      { ...delivered(), fcmOptions: { link } },
      { notification: { ...READY, click_action: link } },
    ]) {
      await push(message)
      assert.equal(await open('Ready'), link)
      await untilShown()
      await closeOthers()
    }
  })

  test('a click focuses the window that has the link open, and the page hears of it', async () => {
    const link = `${site.url}/in-front`
    await page.evaluate(() => {
      const heard = new Promise((resolve) =>
        navigator.serviceWorker.addEventListener('message', ({ data }) => resolve(data), { once: true }),
      )
      Object.assign(window, { heard })
    })
    await context.newPage()
    await untilPageIs('hidden')
    await push(delivered({ link }))
    const before = context.pages().length
    await desktop.click('Ready')
    await untilPageIs('visible')
    assert.deepEqual(await page.evaluate('heard'), { type: 'notification-click', url: link })
    assert.equal(context.pages().length, before)
  })

  test('a message without a link, or with that of an app, opens the start page', async () => {
    for (const link of [null, 'my-app://jobs/job_1', 'https://']) {
      await push(delivered({ link }))
      assert.equal(await open('Ready'), `${site.url}/`)
      await closeOthers()
    }
  })

  test('a push that is no message still shows a notification', async () => {
    const hostile = { toString: 1 }
    for (const message of [
      '',
      'no JSON',
      'null',
      '"text"',
      '[]',
      {},
      { notification: null, data: 1, fcmOptions: 'a' },
      { notification: { title: hostile, body: hostile, tag: hostile }, fcmOptions: { link: hostile }, fcmMessageId: 1 },
    ]) {
      await push(message)
      await untilShown('New message')
      assert.equal(await open('New message'), `${site.url}/`)
      await untilShown()
      await closeOthers()
    }
  })

  test('a later push of a job replaces the earlier one; only another text alerts again', async () => {
    const shown = () =>
      page.evaluate(async () => {
        const worker = await navigator.serviceWorker.ready
        const all = (await worker.getNotifications()) as (Notification & { renotify: boolean })[]
        return all.map(({ title, tag, renotify }) => ({ title, tag, renotify }))
      })
    for (const [title, renotify] of [
      ['Your answer is needed', false],
      ['Your answer is needed', false],
      ['Ready', true],
    ] as const) {
      const arrivals = desktop.arrivals
      await push(delivered({ title }))
      await until(() => desktop.arrivals > arrivals)
      await untilShown(title)
      assert.deepEqual(await shown(), [{ title, tag: 'job_1', renotify }])
    }
  })

  test('a service worker of the app loads it with importScripts', async () => {
    await page.evaluate(async () => {
      const worker = await navigator.serviceWorker.register('/own-worker.js', { scope: '/own/' })
      const { installing } = worker
      await new Promise<void>((resolve) => {
        installing?.addEventListener('statechange', () => installing.state === 'activated' && resolve())
        if (worker.active) resolve()
      })
    })
    await push(delivered(), '/own/')
    assert.equal(await open('Ready'), `${site.url}/`)
  })
})
