import assert from 'node:assert/strict'
import { globSync } from 'node:fs'
import { readFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { extname, join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { needsChromium, newContext, openPage } from '../support/browser.ts'
import { assertAccessible } from '../support/console.ts'

const DIST = fileURLToPath(new URL('../../docs/site/dist', import.meta.url))
const TYPES: Record<string, string> = {
  '.html': 'text/html',
  '.js': 'text/javascript',
  '.css': 'text/css',
  '.png': 'image/png',
}

/** Serves the files of the site. */
function serve(): Server {
  return createServer((request, response) => {
    const { pathname } = new URL(request.url ?? '/', 'http://site')
    const file = pathname.endsWith('/') ? `${pathname}index.html` : pathname
    readFile(join(DIST, file)).then(
      (body) => response.setHeader('content-type', TYPES[extname(file)] ?? 'application/octet-stream').end(body),
      () => response.writeHead(404).end(),
    )
  })
}

describe('the documentation site', needsChromium(), () => {
  let server: Server
  let url: string
  before(async () => {
    server = serve()
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  })
  after(() => server.close())

  test('a page with a diagram fits the window without scripts', async () => {
    const context = await newContext({ viewport: { width: 1280, height: 900 }, javaScriptEnabled: false })
    const page = await context.newPage()
    await page.goto(`${url}/`)
    assert.ok((await page.locator('pre.picture').count()) > 0)
    assert.equal(await page.locator('html').evaluate((root) => root.scrollWidth), 1280)
    await context.close()
  })

  test('every page of the documentation site has no axe finding in either theme, and fits a phone', async () => {
    const pages = globSync('**/*.html', { cwd: DIST }).sort()
    assert.ok(pages.length > 30, `${DIST} has ${pages.length} pages: run \`npm run docs\``)
    const { page, complaints } = await openPage(`${url}/`)
    const faults: string[] = []
    const note = (error: Error) => faults.push(error.message)
    for (const path of pages) {
      await page.setViewportSize({ width: 1280, height: 900 })
      await page.goto(`${url}/${path}`)
      await page.locator('main h1').first().waitFor()
      await assertAccessible(page, path).catch(note)
      await page.setViewportSize({ width: 390, height: 844 })
      const excess = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
      if (excess > 0) faults.push(`${path} is ${excess} px too wide for a phone`)
    }
    assert.deepEqual(faults, [])
    assert.deepEqual(complaints, [])
    await page.context().close()
  })
})
