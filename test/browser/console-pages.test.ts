import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium, openPage, SIZES, type WatchedPage } from '../support/browser.ts'
import { ADA, ConsoleWorld, findAxeFaults } from '../support/console.ts'
import { needsPostgres, sharedMigratedDatabase } from '../support/services.ts'
import { until } from '../support/until.ts'
import { PAGES, type PageCheck, ROLES, type Role, SCREENS } from './console-checks.ts'

const LONG = `${'someone.with.a.very.long.name'.repeat(2)}@${'mail.department.'.repeat(10)}example.com`

/** A user whose e-mail address is longer than any column, with a job. */
async function addLongUser(world: ConsoleWorld): Promise<void> {
  const form = { grant_type: 'client_credentials', sub: 'long-user', email: LONG }
  const response = await fetch(`${world.addressOf('Tokens')}/local_pool/oauth2/token`, {
    method: 'POST',
    body: new URLSearchParams(form),
  })
  const { access_token: token } = (await response.json()) as { access_token: string }
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const body = JSON.stringify({ type: 'failing', input: {} })
  assert.equal((await fetch(`${world.url}/jobs`, { method: 'POST', headers, body })).status, 202)
}

/** Creates data for every page, and answers with the values that the checks name. */
async function fill(world: ConsoleWorld): Promise<Record<string, string>> {
  await world.request('POST', '/v1/devices', { token: 'phone-of-ada', platform: 'android' }, 'ada')
  const { id: endpoint } = await world.request<{ id: string }>('POST', '/v1/webhook-endpoints', {
    url: `${world.addressOf('Webhooks')}/hooks`,
    events: ['job.completed', 'job.failed'],
    description: 'Billing',
  })
  await addLongUser(world)
  // Its push is refused, so that there is a delivery to send again.
  await world.setFaults('Push', { refuse: 'third_party_auth' })
  const completed = await world.startJob('report', { status: 'completed', input: { title: 'Sales', n: 3 } })
  const failed = await world.startJob('failing', { status: 'failed', input: { title: 'Sales' } })
  const { id: operation } = await world.request('POST', '/v1/operations', { action: 'retry', ids: [failed] })
  // Otherwise a list that is open shows a button for the new job.
  await until(async () => (await world.request('GET', `/v1/operations/${operation}`)).state === 'done')
  const waiting = await world.startJob('review', { status: 'awaiting_input', input: { title: 'Sales' } })
  const refused = `${world.url}/webhooks/jobs/report?token=wrong&job_id=${completed}`
  assert.equal((await fetch(refused, { method: 'POST', body: '{}' })).status, 401)
  return { completed, failed, waiting, endpoint, ada: ADA, longEmail: LONG }
}

/** The patterns of the checks as regular expressions. */
function matcherOf(pattern: string): RegExp {
  const parts = pattern.split('*').map((part) => part.replace(/[.?+^${}()|[\]\\]/g, '\\$&'))
  return new RegExp(`^${parts.join('.*')}$`)
}

/** The names of the buttons and checkboxes that the operator sees. One that the screen cuts off says so. */
function controlsOn(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const found = document.querySelectorAll<HTMLButtonElement | HTMLInputElement>(
      '#content :is(button:not(.fold), input[type=checkbox])',
    )
    return Array.from(found)
      .filter((control) => control.checkVisibility())
      .map((control) => {
        const name = control.getAttribute('aria-label') ?? control.labels?.[0]?.textContent ?? control.textContent ?? ''
        const frame = control.closest('.table-frame')?.getBoundingClientRect() ?? { left: 0, right: innerWidth }
        const { left, right } = control.getBoundingClientRect()
        return left < frame.left - 1 || right > frame.right + 1 ? `${name.trim()}, cut off` : name.trim()
      })
  })
}

/** How the controls of the page differ from the expected ones. */
async function findControlFaults(page: Page, expected: readonly string[]): Promise<string[]> {
  const patterns = expected.map((name) => [name, matcherOf(name)] as const)
  let found: string[] = []
  const missing = () => patterns.filter(([, fits]) => !found.some((name) => fits.test(name))).map(([name]) => name)
  // Lists and forms arrive after the title of the page.
  await until(async () => {
    found = await controlsOn(page)
    return missing().length === 0
  }).catch(() => {})
  const others = found.filter((name) => !patterns.some(([, fits]) => fits.test(name)))
  return [...missing().map((name) => `lacks ${name}`), ...others.map((name) => `has ${name}, which is not expected`)]
}

/** What is wider than the screen: the page, a list or a dialog. */
function findWideParts(page: Page): Promise<string[]> {
  return page.evaluate(() => {
    const frames = [document.documentElement, ...document.querySelectorAll<HTMLElement>('.table-frame, dialog')]
    const wide = frames.filter((frame) => frame.scrollWidth > frame.clientWidth + 1)
    return wide.map(
      (frame) => `${frame.className || frame.tagName} is ${frame.scrollWidth - frame.clientWidth} px too wide`,
    )
  })
}

describe('the console, by the file of checks', needsChromium(), () => {
  let world: ConsoleWorld
  let watched: WatchedPage
  let made: Record<string, string>
  const keys = new Map<Role, string>()
  let drop = async () => {}
  before(async () => {
    // The other tests of the console run on SQLite, with the errors of variant B.
    const database = needsPostgres().skip ? undefined : await sharedMigratedDatabase()
    if (database) drop = database.drop
    // Without a client at the identity provider, the console takes a key: one of each role.
    world = await ConsoleWorld.start({
      CONSOLE_CLIENT_ID: '',
      API_VARIANT: 'A',
      ...(database && { DATABASE_URL: database.url }),
    })
    made = await fill(world)
    for (const [role, { scopes }] of Object.entries(ROLES)) {
      const account = { name: role, scopes }
      const { key } = await world.request<{ key: string }>('POST', '/v1/service-accounts', account)
      keys.set(role as Role, key)
    }
    watched = await openPage('about:blank')
  })
  after(async () => {
    await watched?.page.context().close()
    await world?.close()
    await drop()
  })

  const withIds = (text: string) => text.replace(/{(\w+)}/g, (_, name: string) => made[name] ?? '')

  async function signInAs(role: Role): Promise<void> {
    const { page } = watched
    // A credential is kept in memory only, so a new page has none.
    await page.goto(`${world.url}/console`)
    await page.getByLabel('Access token or service key').fill(keys.get(role) ?? '')
    await page.getByRole('button', { name: 'Sign in', exact: true }).click()
    await page.locator('#navigation').waitFor({ state: 'attached' })
    // The console tests the operator's permissions with requests, and the service refuses some of them.
    watched.complaints = []
  }

  async function visit({ path }: Pick<PageCheck, 'path'>, title: string): Promise<void> {
    const { page } = watched
    await page.evaluate(
      (to) => {
        history.pushState(null, '', to)
        dispatchEvent(new PopStateEvent('popstate'))
      },
      `/console${withIds(path)}`,
    )
    await page.getByRole('heading', { level: 1, name: title, exact: true }).waitFor()
    await page.waitForFunction(() => document.querySelector('.spinner') === null)
    assert.equal(await page.title(), `${title} – Project API console`)
  }

  /** Structure does not depend on the theme. The tablet has the parts of the desktop and of the phone, so their colors too. */
  async function* findScreenFaults(screen: (typeof SCREENS)[number]): AsyncGenerator<string> {
    const { page } = watched
    await page.emulateMedia({ colorScheme: 'light' })
    yield* await findAxeFaults(page, screen === 'tablet' ? { colors: 'none' } : {})
    if (screen === 'tablet') return
    await page.emulateMedia({ colorScheme: 'dark' })
    yield* (await findAxeFaults(page, { colors: 'only' })).map((fault) => `dark: ${fault}`)
    yield* await findWideParts(page)
  }

  /** Opens the dialog of each control that has one, and looks at it on every screen and in both themes. */
  async function* findDialogFaults({ reads = {}, actions = {} }: PageCheck): AsyncGenerator<string> {
    const { page } = watched
    for (const [name, title] of Object.entries({ ...reads, ...actions })) {
      if (title === null) continue
      const control = page.locator('#content').getByRole('button', { name: matcherOf(name) })
      await control.first().click()
      const dialog = page.getByRole('dialog', { name: matcherOf(title) })
      await dialog.waitFor()
      for (const colorScheme of ['light', 'dark'] as const) {
        await page.emulateMedia({ colorScheme })
        const rules = colorScheme === 'dark' ? ({ colors: 'only' } as const) : {}
        const faults = await findAxeFaults(page, { within: 'dialog', ...rules })
        yield* faults.map((fault) => `the dialog of ${name}, ${colorScheme}: ${fault}`)
      }
      for (const screen of SCREENS) {
        await page.setViewportSize(SIZES[screen])
        yield* (await findWideParts(page)).map((fault) => `the dialog of ${name} on a ${screen}: ${fault}`)
      }
      await page.keyboard.press('Escape')
      await dialog.waitFor({ state: 'detached' })
    }
  }

  for (const role of Object.keys(ROLES) as Role[]) {
    test(`each page of the console shows the role ${role} its actions and no others, on every screen, without an axe finding or an error`, async () => {
      await signInAs(role)
      const { page } = watched
      const { lacks } = ROLES[role]
      const isAdmin = role === 'admin'
      const entries = await page.locator('#navigation > ul a').allTextContents()
      assert.deepEqual(
        ['Keys', 'People'].filter((entry) => !entries.includes(entry)),
        lacks,
      )
      const faults: string[] = []
      for (const check of PAGES) {
        const { path, entry, reads = {}, actions = {} } = check
        if (entry !== undefined && lacks.includes(entry)) {
          await visit(check, 'Overview')
          continue
        }
        const note = (fault: string) => faults.push(`${path}, ${fault}`)
        await page.setViewportSize(SIZES.desktop)
        await visit(check, withIds(check.title))
        for (const screen of SCREENS) {
          await page.setViewportSize(SIZES[screen])
          const expected = Object.keys(isAdmin ? { ...reads, ...actions } : reads)
          const found = [...(await findControlFaults(page, expected)), ...(await findWideParts(page))]
          for (const fault of found) note(`${screen}: ${fault}`)
          if (isAdmin) for await (const fault of findScreenFaults(screen)) note(`${screen}: ${fault}`)
        }
        if (isAdmin) for await (const fault of findDialogFaults(check)) note(fault)
        // A page without actions looks the same for every role.
        else if (Object.keys(actions).length > 0)
          for (const fault of await findAxeFaults(page, { colors: 'none' })) note(fault)
      }
      assert.deepEqual(faults, [])
      assert.deepEqual(watched.complaints, [])
      if (isAdmin) {
        await visit({ path: '/settings' }, 'Settings')
        for (const screen of SCREENS) await assertNavigationStays(screen)
      }
    })
  }

  test('the sign-in page has no axe finding on any screen, in both themes, with and without a provider', async () => {
    const { page } = watched
    const faults: string[] = []
    for (const clientId of [null, 'console']) {
      await page.route('**/console/settings.json', async (route) => {
        const response = await route.fetch()
        await route.fulfill({ response, json: { ...((await response.json()) as object), clientId, dev: null } })
      })
      await page.goto(`${world.url}/console`)
      await page.getByRole('button', { name: 'Sign in', exact: true }).waitFor()
      for (const screen of SCREENS) {
        await page.setViewportSize(SIZES[screen])
        const found: string[] = []
        for await (const fault of findScreenFaults(screen)) found.push(fault)
        faults.push(...found.map((fault) => `${screen}, ${clientId}: ${fault}`))
      }
      await page.unrouteAll({ behavior: 'wait' })
    }
    assert.deepEqual(faults, [])
  })

  test('the console shows the message of a refused request', async () => {
    await signInAs('admin')
    await watched.page.evaluate(() => history.pushState(null, '', '/console/people/no-such-user'))
    await watched.page.evaluate(() => dispatchEvent(new PopStateEvent('popstate')))
    await watched.page.getByText('No such user').first().waitFor()
  })

  async function assertNavigationStays(screen: (typeof SCREENS)[number]): Promise<void> {
    const { page } = watched
    await page.setViewportSize(SIZES[screen])
    await page.getByRole('row').last().scrollIntoViewIfNeeded()
    const scrolled = await page.evaluate(() => document.scrollingElement?.scrollTop ?? 0)
    assert.ok(scrolled > 0, 'the page is longer than the screen')
    const menu = page.getByRole('button', { name: 'Menu' })
    const hasMenu = screen !== 'desktop'
    if (hasMenu) await menu.click()
    const link = page.getByRole('link', { name: 'Overview' })
    const { top } = await link.evaluate((element) => element.getBoundingClientRect())
    assert.ok(top > 0 && top < SIZES[screen].height, `${top} on a ${screen}`)
    if (hasMenu) await menu.click()
  }
})
