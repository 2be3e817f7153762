import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { afterEach, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import type { Env } from '../../src/config-reader.ts'
import { needsChromium, openPage } from '../support/browser.ts'
import { type CutOffProxy, startCutOffProxy } from '../support/cut-off-proxy.ts'
import { type JobWorld, startJobWorld, WEBHOOK_SECRET } from '../support/job-world.ts'
import { overTime } from '../support/over-time.ts'
import { forEachVariant, onVariantB, type ServiceUnderTest } from '../support/service.ts'
import { startTutorialSite, type TutorialSite } from '../support/tutorial-site.ts'
import { until } from '../support/until.ts'

const SENTENCE = Array.from({ length: 12 }, (_, n) => `word${n}`).join(' ')
const ANSWER = `You said: ${SENTENCE}`
/** Between two words of the agent, by the service's clock. */
const WORD_MS = 1_000
const STEP_MS = 250

interface ChatOptions {
  env?: Env
  tokenSeconds?: number
}

/** The chat of the tutorial in Chromium. The service has one clock, the page another, and tests move both. */
class Chat {
  readonly world: JobWorld
  readonly page: Page
  /** The statuses of all answers of the service that the page got. */
  readonly statuses: number[] = []
  signIns = 0

  constructor(world: JobWorld, page: Page) {
    this.world = world
    this.page = page
    page.on('response', (response) => this.statuses.push(response.status()))
  }

  async say(text: string, { asks = false } = {}): Promise<void> {
    await this.page.getByLabel('Your message').fill(text)
    await this.page.getByLabel('Ask me first').setChecked(asks)
    await this.page.getByRole('button').click()
  }

  lines(): Promise<string[]> {
    return this.page.locator('main p').allTextContents()
  }

  /** What the agent has said in the last line; empty while that is the user's. */
  async shown(): Promise<string> {
    return (await this.page.locator('main p:last-child.agent').allTextContents())[0] ?? ''
  }

  async isIdle(): Promise<boolean> {
    return (await this.page.locator('form:not([inert])').count()) === 1
  }

  /** Lets time pass, at the service and in the page, until it holds. */
  passUntil(holds: () => Promise<boolean>, { pageMs = 0 } = {}): Promise<void> {
    return until(async () => {
      await this.world.pass(STEP_MS)
      if (pageMs > 0) await this.page.clock.fastForward(pageMs)
      return holds()
    })
  }

  untilShown(part: string, options?: { pageMs: number }): Promise<void> {
    return this.passUntil(async () => (await this.shown()).includes(part), options)
  }

  /**
   * All words arrive live. Until then every question about the run fails, so the job has not ended, and the page cannot
   * have the words from the stored job. Then the job ends.
   */
  async untilAnswered(options?: { pageMs: number }): Promise<void> {
    const { runtime } = this.world
    runtime.setFaults({ lookup_failure: 1 })
    await this.passUntil(async () => {
      const text = await this.shown()
      assert.ok(ANSWER.startsWith(text), `a word is missing or doubled: ${text}`)
      return text === ANSWER
    }, options)
    assert.equal(await this.isIdle(), false, 'the job has not ended')
    runtime.setFaults({ lookup_failure: 0 })
    await this.passUntil(() => this.isIdle(), options)
    assert.equal(await this.shown(), ANSWER)
  }
}

describe('a page of another origin, in Chromium, whose service loses every callback', needsChromium(), () => {
  let proxy: CutOffProxy
  let site: TutorialSite
  let mint = () => ''
  let opened: Page | undefined
  // A page that stays open would go on with its streams and retries.
  afterEach(() => opened?.context().close())
  before(async () => {
    proxy = await startCutOffProxy('http://127.0.0.1:1')
    site = await startTutorialSite(() => ({ api: proxy.url, tokens: null, mint: () => mint() }))
  })

  async function openChat(under: ServiceUnderTest, { env = {}, tokenSeconds = 3_600 }: ChatOptions = {}) {
    const world = await startJobWorld(under, { env: { CORS_ORIGINS: site.url, ...env } })
    world.runtime.setFaults({ token_ms: WORD_MS, drop_callbacks: 1 })
    proxy.target = world.service.url
    const { page } = await openPage(site.url)
    opened = page
    const chat = new Chat(world, page)
    const sub = `user-${randomUUID()}`
    mint = () => {
      chat.signIns += 1
      return world.service.tokenFor({ sub, expiresInSeconds: tokenSeconds })
    }
    await page.clock.install()
    await page.goto(`${site.url}/chat.html`)
    return chat
  }

  /** In the middle of its answer. */
  async function openAnsweringChat(under: ServiceUnderTest, options: ChatOptions = {}) {
    const chat = await openChat(under, options)
    await chat.say(SENTENCE)
    await chat.passUntil(async () => chat.world.hasSaid('word2'), { pageMs: 100 })
    // Now the clock of the service stands. Otherwise the answer could end before a slow page shows the word.
    await until(async () => {
      await chat.page.clock.fastForward(100)
      return (await chat.shown()).includes('word2')
    })
    return chat
  }

  onVariantB((under) => {
    test('words appear one by one, the next turn knows the conversation, and a question is answered', async () => {
      const chat = await openAnsweringChat(under)
      assert.ok(!(await chat.shown()).includes('word11'), 'not all at once')
      await chat.untilAnswered()
      await chat.say('Now this', { asks: true })
      await chat.untilShown('Shall I go on?')
      await chat.passUntil(() => chat.isIdle())
      await chat.say('Yes')
      await chat.untilShown('You said: Now this')
      await chat.passUntil(() => chat.isIdle())
      const spoken = [SENTENCE, ANSWER, 'Now this', 'Shall I go on?', 'Yes', 'You said: Now this']
      assert.deepEqual(await chat.lines(), spoken)
      const { data } = (
        await chat.world.service.request<{ data: { settled_by: string; thread_id: string }[] }>('GET', '/jobs', {
          token: mint(),
        })
      ).body
      assert.equal(data.length, 2)
      assert.equal(new Set(data.map(({ thread_id }) => thread_id)).size, 1)
      assert.ok(data.every(({ settled_by }) => settled_by !== 'callback'))
    })

    test('a reload in the middle of an answer loses no word', async () => {
      const chat = await openAnsweringChat(under)
      await chat.page.reload()
      await chat.untilAnswered()
      assert.deepEqual(await chat.lines(), [SENTENCE, ANSWER])
    })

    test('a connection that is frozen for a minute is replaced, and no word is lost', async () => {
      const chat = await openAnsweringChat(under)
      proxy.freeze()
      const before = await chat.shown()
      await chat.world.pass(3 * WORD_MS)
      assert.equal(await chat.shown(), before, 'nothing arrives')
      await chat.page.clock.fastForward(60_000)
      await chat.untilAnswered({ pageMs: 1_000 })
    })

    test('a connection that breaks is replaced, and no word is lost', async () => {
      const chat = await openAnsweringChat(under)
      proxy.cut()
      await chat.untilAnswered({ pageMs: 500 })
    })

    test('the service is restarted in the middle of an answer', async () => {
      const chat = await openAnsweringChat(under)
      const { service, clock, db, runtime } = chat.world
      await overTime(chat.world, service.app.close())
      const env = {
        CORS_ORIGINS: site.url,
        WEBHOOK_SECRET,
        RUNTIME_URL: runtime.url,
        PUBLIC_URL: 'http://service.test',
      }
      proxy.target = (await under.start({ clock, db, env, jobTypes: service.services.jobContext.types })).url
      await chat.untilAnswered({ pageMs: 500 })
    })
  })

  // The page reads errors, whose envelope differs.
  forEachVariant((under) => {
    test('tokens that expire in the middle of an answer are replaced', async () => {
      // Half as long as the answer takes, so that a slow page can use a new token before it expires too.
      const chat = await openAnsweringChat(under, { tokenSeconds: 8 })
      await chat.untilAnswered({ pageMs: 500 })
      assert.ok(chat.signIns >= 2, `${chat.signIns} sign-ins`)
      assert.ok(chat.statuses.includes(401))
    })

    test('requests beyond the rate limit are repeated when the service allows it', async () => {
      const chat = await openAnsweringChat(under, { env: { RATE_LIMIT_AUTHENTICATED: '2' } })
      await chat.untilShown('word11')
      await until(async () => {
        await chat.world.pass(STEP_MS)
        return chat.statuses.includes(429)
      })
      assert.equal(await chat.isIdle(), false)
      await chat.world.leap(60_000)
      await chat.passUntil(() => chat.isIdle(), { pageMs: 2_000 })
      assert.deepEqual(await chat.lines(), [SENTENCE, ANSWER])
    })
  })
})
