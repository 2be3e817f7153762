import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium, openPage } from '../support/browser.ts'
import { hideTab, makeTabsHideable } from '../support/hidden-tabs.ts'
import { type LangGraph, startLangGraph } from '../support/langgraph.ts'
import { bundlePage, servePage } from '../support/page-site.ts'
import { PATIENCE_MS } from '../support/patience.ts'
import { freshFolder } from '../support/program.ts'
import { type Served, sharedIssuer, startServe } from '../support/served.ts'
import { freePort } from '../support/server-process.ts'

const TABS_EACH = 5
/** The pause before each of five pieces of the answer: the service restarts meanwhile. */
const PIECE_MS = 1_500
const JOB_TYPES = { types: { agent: { assistant_id: 'talk', live: ['messages'] } } }

const answers = (page: Page) => page.locator('p.assistant')
const allSaid = (page: Page) => page.locator('p').allTextContents()

describe('a chat in two browsers with ten tabs, on the real runtime', needsChromium(), () => {
  let runtime: LangGraph
  before(async () => {
    runtime = await startLangGraph()
  })
  after(() => runtime?.stop())

  test('every tab shows each turn once, over a restart of the service, wherever the turn began', async (t) => {
    const site = await servePage(bundlePage(new URL('./chat-page.ts', import.meta.url)))
    const folder = freshFolder()
    writeFileSync(join(folder, 'job-types.json'), JSON.stringify(JOB_TYPES))
    const settings = { RUNTIME_URL: runtime.url, CORS_ORIGINS: site.url, PORT: String(await freePort()) }
    let service: Served = await startServe({ folder, settings })
    const token = (await sharedIssuer()).mint({ user: 'ada' })
    const hash = encodeURIComponent(JSON.stringify({ url: service.url, token, pauseMs: PIECE_MS }))

    /** A browser with one tab. Only the newest tab is shown. */
    const openBrowser = async (search: string) => {
      const { page: blank } = await openPage('about:blank')
      const context = blank.context()
      context.setDefaultTimeout(PATIENCE_MS)
      t.after(() => context.close())
      await makeTabsHideable(context)
      const tabs: Page[] = []
      const open = async (address: string) => {
        const last = tabs.at(-1)
        if (last) await hideTab(last, true)
        const tab = await context.newPage()
        await tab.goto(address)
        tabs.push(tab)
        return tab
      }
      return { tabs, open, first: await open(`${site.url}/${search}#${hash}`) }
    }

    const laptop = await openBrowser('')
    await laptop.first.waitForFunction(() => 'say' in globalThis)
    await laptop.first.evaluate("say('Hello')")
    await laptop.first.waitForURL(/thread=/)
    await answers(laptop.first).getByText('One').waitFor()
    const { search } = new URL(laptop.first.url())
    const phone = await openBrowser(search)
    for (const { tabs, open } of [laptop, phone]) {
      while (tabs.length < TABS_EACH) await open(laptop.first.url())
    }

    service.program.signal('SIGTERM')
    await service.program.untilEnded()
    service = await startServe({ folder, settings })

    const shown = [laptop, phone].map(({ tabs }) => tabs.at(-1) as Page)
    /** The tab has nothing to do, and shows the ends of this many turns. */
    const ended = async (page: Page, turns: number) => {
      const answer = page.locator('body[data-status=ready] p.assistant[data-status=completed]')
      await answer.nth(turns - 1).waitFor()
    }
    await Promise.all(shown.map((page) => ended(page, 1)))
    // A tab that has nothing to do notices the turn of the other browser.
    await shown[1]?.evaluate("say('And now?')")
    await Promise.all(shown.map((page) => ended(page, 2)))

    for (const { tabs } of [laptop, phone]) {
      await hideTab(tabs.at(-1) as Page, true)
      for (const tab of tabs) {
        await hideTab(tab, false)
        await ended(tab, 2)
        const [first, answer, second, next, ...more] = await allSaid(tab)
        assert.deepEqual([first, second, more], ['Hello', 'And now?', []])
        // A tab that was shown has the live text, in parts. A tab that was not has the stored output.
        for (const text of [answer, next]) assert.match(text ?? '', /^(One two \nthree four\n)?That was all\.$/)
        await hideTab(tab, true)
      }
    }
    const { body } = await service.request<{ data: { status: string }[] }>('GET', '/jobs', { token })
    assert.deepEqual(
      body.data.map(({ status }) => status),
      ['completed', 'completed'],
    )
  })
})
