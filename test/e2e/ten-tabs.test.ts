import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium, openPage } from '../support/browser.ts'
import { type CutOffProxy, startCutOffProxy } from '../support/cut-off-proxy.ts'
import { hideTab, makeTabsHideable } from '../support/hidden-tabs.ts'
import { startJobWorld } from '../support/job-world.ts'
import { onVariantB } from '../support/service.ts'
import { startTutorialSite, type TutorialSite } from '../support/tutorial-site.ts'
import { until } from '../support/until.ts'

const TABS = 10
const SENTENCE = 'one two three four'
const ANSWER = `You said: ${SENTENCE}`
const WORD_MS = 1_000

describe('ten tabs of one browser over HTTP/1.1', needsChromium(), () => {
  let proxy: CutOffProxy
  let site: TutorialSite
  let mint = () => ''
  before(async () => {
    proxy = await startCutOffProxy('http://127.0.0.1:1')
    site = await startTutorialSite(() => ({ api: proxy.url, tokens: null, mint: () => mint() }))
  })

  onVariantB((under) => {
    test('each tab that is shown follows the answer, and hidden tabs hold no connection', async (t) => {
      const world = await startJobWorld(under, { env: { CORS_ORIGINS: site.url } })
      const sub = `user-${randomUUID()}`
      mint = () => world.service.tokenFor({ sub, expiresInSeconds: 3_600 })
      world.runtime.setFaults({ token_ms: WORD_MS, drop_callbacks: 1 })
      proxy.target = world.service.url
      const { live } = world.service.services

      const { page: first } = await openPage(`${site.url}/index.html`)
      const context = first.context()
      t.after(() => context.close())
      await makeTabsHideable(context)
      await first.goto(`${site.url}/chat.html`)
      await first.getByLabel('Your message').fill(SENTENCE)
      await first.getByRole('button').click()
      const said = (page: Page) => page.locator('main p.agent').last().textContent()
      const spoken = async (page: Page, part: string) => (await said(page))?.includes(part) ?? false
      await until(async () => {
        await world.pass(WORD_MS / 4)
        return world.hasSaid('one')
      })
      // Until all tabs show it, the clock stands. Otherwise the answer could end before a slow page shows the word.
      await until(() => spoken(first, 'one'))

      const tabs = [first]
      while (tabs.length < TABS) {
        await hideTab(tabs.at(-1) as Page, true)
        const tab = await context.newPage()
        await tab.goto(first.url())
        await tab.locator('main p.agent', { hasText: 'one' }).waitFor()
        tabs.push(tab)
      }
      await until(() => live.viewers === 1)

      await hideTab(tabs.at(-1) as Page, true)
      await hideTab(first, false)
      await until(async () => {
        await world.pass(WORD_MS / 4)
        return (await first.locator('form:not([inert])').count()) === 1
      })
      for (const tab of tabs) {
        await hideTab(tab, false)
        await tab.locator('form:not([inert])').waitFor()
        assert.equal(await said(tab), ANSWER)
        await hideTab(tab, true)
      }
      await until(() => live.viewers === 0)
    })
  })
})
