import assert from 'node:assert/strict'
import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { after, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import type { Page } from 'playwright-core'
import { needsChromium, openPage } from '../support/browser.ts'
import { descendantsOf } from '../support/process-tree.ts'
import { freePort } from '../support/server-process.ts'
import { VARIANTS } from '../support/service.ts'
import { until } from '../support/until.ts'

const RUN = fileURLToPath(new URL('../../examples/chat/run.ts', import.meta.url))
const ANSWER = /^You wrote: “Tell me about yourself”\. Here is my answer, .* and the job still ends\.$/

/** Empty for a process that has ended. */
function commandOf(pid: number): string {
  const { stdout } = spawnSync('ps', ['-o', 'args=', '-p', String(pid)], { encoding: 'utf8' })
  return stdout
}

const children: ChildProcess[] = []
after(() => {
  for (const child of children) child.kill('SIGTERM')
})

async function spawnExample(variant: string, args: string[] = []): Promise<ChildProcess> {
  const child = spawn(process.execPath, [RUN, ...args], {
    env: { ...process.env, PORT: String(await freePort()), API_VARIANT: variant },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  children.push(child)
  return child
}

/** Starts the example like `npm run example`. Resolves to its address. */
async function startExample(variant: string): Promise<string> {
  const port = String(await freePort())
  const child = await spawnExample(variant, ['--port', port, '--strictPort'])
  await new Promise<void>((resolve, reject) => {
    child.once('exit', () => reject(new Error('The example ended')))
    child.stdout?.on('data', (text) => String(text).includes('Local') && resolve())
  })
  return `http://localhost:${port}`
}

/** Answers the next matching request once with this response, with the CORS headers of the service. */
async function failOnce(page: Page, path: RegExp, failure: { status: number; code: string } | 'cut'): Promise<void> {
  await page.route(
    path,
    (route) => {
      if (failure === 'cut') return route.abort()
      const body = JSON.stringify({ error: { code: failure.code, message: failure.code, requestId: 'r' } })
      const headers = {
        'access-control-allow-origin': '*',
        'access-control-expose-headers': 'Retry-After',
        'retry-after': '1',
      }
      return route.fulfill({ status: failure.status, contentType: 'application/json', headers, body })
    },
    { times: 1 },
  )
}

describe('the example app, in a real browser', needsChromium(), () => {
  for (const variant of VARIANTS) {
    test(`a conversation survives faults and a reload, with variant ${variant} and every callback lost`, async () => {
      const { page } = await openPage(await startExample(variant))
      await page.getByRole('button', { name: 'Ada Lovelace' }).click()
      await page.locator('aside').getByText('None yet.').waitFor()

      await failOnce(page, /\/jobs$/, { status: 401, code: 'unauthorized' })
      await failOnce(page, /\/jobs$/, { status: 429, code: 'rate_limit_exceeded' })
      await failOnce(page, /\/live$/, 'cut')
      await page.getByRole('button', { name: 'Tell me about yourself' }).click()
      await page.getByText('Here is my').waitFor()
      await page.reload()
      await page.getByText('the job still ends.').waitFor()
      const answers = await page.locator('article.assistant > p').allTextContents()
      assert.equal(answers.length, 1)
      assert.match(answers[0] ?? '', ANSWER)
      assert.deepEqual(await page.locator('article.user').allTextContents(), ['Tell me about yourself'])

      await page.getByLabel('Message').fill('Publish the report')
      await page.getByRole('button', { name: 'Send' }).click()
      await page.locator('aside').getByText('awaiting input').waitFor()
      await page.getByRole('button', { name: 'Yes' }).click()
      await page.getByText('Done, as you decided.').waitFor()
      await page.locator('aside').getByText('completed').nth(1).waitFor()
      const found = await page.locator('aside small').allTextContents()
      assert.ok(
        found.every((by) => by !== 'found by callback'),
        found.join(),
      )
    })
  }

  test('another browser shows the chat with the answer that is being written, and continues it', async () => {
    const url = await startExample('B')
    const { page } = await openPage(url)
    await page.getByRole('button', { name: 'Ada Lovelace' }).click()
    await page.getByRole('button', { name: 'Tell me about yourself' }).click()
    await page.getByText('Here is my').waitFor()
    const address = page.url()
    assert.match(address, /#[0-9a-f-]{36}$/)
    const { page: second } = await openPage(url)
    await second.getByRole('button', { name: 'Ada Lovelace' }).click()
    await second.locator('nav').getByRole('button', { name: 'Tell me about yourself' }).click()
    await second.locator('article.user', { hasText: 'Tell me about yourself' }).waitFor()
    assert.equal(second.url(), address)
    await Promise.all([page, second].map((one) => one.getByText('the job still ends.').waitFor()))
    await second.getByLabel('Message').fill('What can you do?')
    await second.getByRole('button', { name: 'Send' }).click()
    // The first browser notices it without a reload.
    await page.locator('article.user', { hasText: 'What can you do?' }).waitFor()
    await page.locator('article.assistant', { hasText: 'You wrote: “What can you do?”' }).waitFor()
    await second.locator('aside').getByText('completed').nth(1).waitFor()
    assert.equal(await page.locator('article').count(), 4)
  })

  test('Stop cancels the job of the chat; leaving the chat does not', async () => {
    const { page } = await openPage(await startExample('A'))
    await page.getByRole('button', { name: 'Ada Lovelace' }).click()
    await page.locator('.ideas').getByRole('button', { name: 'Tell me about yourself' }).click()
    await page.getByText('Here is my').waitFor()
    // Opening another chat unmounts this one.
    await page.getByRole('button', { name: 'New chat' }).click()
    await page.locator('aside').getByText('completed').waitFor()
    await page.locator('.ideas').getByRole('button', { name: 'Tell me about yourself' }).click()
    await page.getByText('Here is my').waitFor()
    await page.getByRole('button', { name: 'Stop' }).click()
    await page.locator('aside').getByText('cancelled').waitFor()
    await page.reload()
    await page.locator('article.assistant').getByText('Cancelled').waitFor()
  })

  test('an example that is stopped while it starts leaves no process', async () => {
    const child = await spawnExample('A')
    const below = () => descendantsOf(child.pid ?? 0)
    const isDev = (pid: number) => commandOf(pid).includes('project-api.js dev')
    await until(() => below().some(isDev))
    const started = below()
    child.kill('SIGTERM')
    await new Promise((resolve) => child.once('exit', resolve))
    await until(() => started.every((pid) => !commandOf(pid).includes('project-api.js')))
  })
})
