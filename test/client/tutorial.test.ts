import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { before, describe, test } from 'node:test'
import { needsChromium, openPage } from '../support/browser.ts'
import { repositoryPath } from '../support/doc-code.ts'
import { Program } from '../support/program.ts'
import { freePort } from '../support/server-process.ts'
import { BUILT_CLIENT, startTutorialSite, type TutorialSite } from '../support/tutorial-site.ts'

/** Checks the code like the reader's editor. */
const TSCONFIG = {
  compilerOptions: {
    target: 'es2022',
    lib: ['es2022', 'dom', 'dom.iterable'],
    module: 'esnext',
    moduleResolution: 'bundler',
    strict: true,
    noEmit: true,
    skipLibCheck: true,
    types: [],
    paths: { '@project-api/client': [`./${BUILT_CLIENT}.d.ts`] },
  },
  files: ['report.ts', 'chat.ts'],
}

describe('the code of the tutorial, beside dev', needsChromium(), () => {
  let site: TutorialSite
  let runtime: string
  let addresses: { api: string; tokens: string }
  before(async () => {
    const dev = new Program(['dev'], { settings: { PORT: String(await freePort()) } })
    await dev.untilSaid(/Ctrl-C/)
    const addressOf = (name: string) => new RegExp(`^ *${name} +(http\\S+)`, 'm').exec(dev.output)?.[1] ?? ''
    runtime = addressOf('Runtime')
    addresses = { api: addressOf('API'), tokens: addressOf('Tokens') }
    site = await startTutorialSite(() => addresses)
  })

  test('the code of the tutorial has no type error; a misspelt field is one', () => {
    const check = () => {
      writeFileSync(join(site.folder, 'tsconfig.json'), JSON.stringify(TSCONFIG))
      const args = [repositoryPath('node_modules/typescript/bin/tsc'), '-p', 'tsconfig.json']
      return spawnSync(process.execPath, args, { cwd: site.folder, timeout: 120_000 }).stdout.toString()
    }
    assert.equal(check(), '')
    writeFileSync(
      join(site.folder, 'wrong.ts'),
      "import { api } from './api'\nvoid api.jobs.start('report', { titel: 'Sales' })\n",
    )
    TSCONFIG.files.push('wrong.ts')
    assert.match(check(), /wrong\.ts.*'titel' does not exist/)
  })

  test('the first page shows a report', async () => {
    const { page, complaints } = await openPage(site.url)
    await page.getByLabel('Title').fill('Spring')
    await page.getByRole('button').click()
    await page.getByText('Spring, with 3 figures').waitFor()
    assert.deepEqual(complaints, [])
  })

  test('the chat answers, continues, asks, and shows all turns after a reload, with every callback lost', async () => {
    const faults = { method: 'PATCH', headers: { 'content-type': 'application/json' }, body: '{"drop_callbacks":1}' }
    assert.equal((await fetch(`${runtime}/sandbox/faults`, faults)).status, 200)
    const { page, complaints } = await openPage(`${site.url}/chat.html`)
    const say = async (text: string) => {
      await page.getByLabel('Your message').fill(text)
      await page.getByRole('button').click()
    }
    const lines = () => page.locator('main p').allTextContents()
    await say('Hello there')
    await page.getByText('You said: Hello there').waitFor()
    await page.locator('form:not([inert])').waitFor()
    await page.getByLabel('Ask me first').check()
    await say('Again')
    await page.getByText('Shall I go on?').waitFor()
    await page.locator('form:not([inert])').waitFor()
    await say('Yes')
    await page.getByText('You said: Again').waitFor()
    const spoken = ['Hello there', 'You said: Hello there', 'Again', 'Shall I go on?', 'Yes', 'You said: Again']
    assert.deepEqual(await lines(), spoken)
    await page.locator('form:not([inert])').waitFor()
    await page.reload()
    await page.getByText('You said: Again').waitFor()
    await page.locator('form:not([inert])').waitFor()
    assert.deepEqual(await lines(), spoken)
    // The client closes the live output of a run that has ended.
    const isClosed = (complaint: string) => /^failed to get \S+\/live$/.test(complaint)
    assert.deepEqual(
      complaints.filter((complaint) => !isClosed(complaint)),
      [],
    )
  })

  test('a second browser shows the conversation at the same address, and joins the turn that runs', async () => {
    const { page } = await openPage(`${site.url}/chat.html`)
    const say = async (text: string) => {
      await page.getByLabel('Your message').fill(text)
      await page.getByRole('button').click()
    }
    await say('Hello there')
    await page.getByText('You said: Hello there').waitFor()
    await page.locator('form:not([inert])').waitFor()
    await page.getByLabel('Ask me first').check()
    await say('Publish it')
    await page.getByText('Shall I go on?').waitFor()
    const second = await openPage(page.url())
    await second.page.getByText('Shall I go on?').waitFor()
    await second.page.locator('form:not([inert])').waitFor()
    await second.page.getByLabel('Your message').fill('Yes')
    await second.page.getByRole('button').click()
    await second.page.getByText('You said: Publish it').waitFor()
    const lines = await second.page.locator('main p').allTextContents()
    const asked = ['Publish it', 'Shall I go on?', 'Yes', 'You said: Publish it']
    assert.deepEqual(lines, ['Hello there', 'You said: Hello there', ...asked])
  })

  test('the chat shows a turn that was cancelled elsewhere as cancelled, also after a reload', async () => {
    const { page } = await openPage(`${site.url}/chat.html`)
    const say = async (text: string) => {
      await page.getByLabel('Your message').fill(text)
      await page.getByRole('button').click()
    }
    const isReady = () => page.locator('form:not([inert])').waitFor()
    await page.getByLabel('Ask me first').check()
    await say('Publish it')
    await page.getByText('Shall I go on?').waitFor()
    await isReady()
    await cancelNewest()
    await say('Yes')
    await page.getByText('cancelled').waitFor()
    await isReady()
    await say('Hello')
    await page.getByText('You said: Hello').waitFor()
    await isReady()
    await page.reload()
    await page.getByText('You said: Hello').waitFor()
    const lines = await page.locator('main p').allTextContents()
    assert.deepEqual(lines, ['Publish it', 'Shall I go on?', 'cancelled', 'Hello', 'You said: Hello'])
  })

  async function cancelNewest(): Promise<void> {
    const body = new URLSearchParams({ grant_type: 'password', username: 'ada' })
    const signedIn = await fetch(`${addresses.tokens}/local_pool/oauth2/token`, { method: 'POST', body })
    const { access_token } = (await signedIn.json()) as { access_token: string }
    const headers = { authorization: `Bearer ${access_token}` }
    const listed = await fetch(`${addresses.api}/jobs?limit=1`, { headers })
    const [newest] = ((await listed.json()) as { data: { id: string }[] }).data
    const cancelled = await fetch(`${addresses.api}/jobs/${newest?.id}/cancel`, { method: 'POST', headers })
    assert.equal(cancelled.status, 200)
  }
})
