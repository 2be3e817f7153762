import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import type { Page } from 'playwright-core'
import { openPage, type PageOptions, reopenPage, type WatchedPage } from './browser.ts'
import { HttpClient } from './http-client.ts'
import { freshFolder, Program, type Settings } from './program.ts'
import { freePort } from './server-process.ts'
import { until } from './until.ts'

export type Username = 'ada' | 'grace' | 'margaret' | 'admin'
export const ADA = '5e1f0c1a-0001-4a7d-9c3e-0ada0ada0ada'

/** Job types for every course of a job in the console's tests. */
const JOB_TYPES = {
  types: {
    agent: { description: 'A conversation.', assistant_id: 'agent', may_pause: true, live: ['messages'] },
    report: {
      description: 'Writes a report.',
      assistant_id: 'report',
      output_key: 'report',
      notifications: { completed: { title: 'Your report is ready', body: 'Open the app to read it.' } },
      input_schema: { type: 'object', properties: { title: { type: 'string' } } },
    },
    review: {
      description: 'Asks before it publishes.',
      assistant_id: 'pause',
      output_key: 'report',
      may_pause: true,
      resume_schema: {
        type: 'object',
        properties: {
          publish: { type: 'boolean', title: 'Publish it' },
          channel: { enum: ['web', 'mail'], title: 'Channel' },
          copies: { type: 'integer', title: 'Copies' },
          note: { type: 'string', title: 'Note' },
        },
        required: ['publish', 'channel', 'copies', 'note'],
        additionalProperties: false,
      },
    },
    failing: { description: 'Always fails.', assistant_id: 'throw', output_key: 'report' },
    slow: { description: 'Takes long.', assistant_id: 'sleep', output_key: 'report' },
    whoami: {
      description: 'Answers with its caller.',
      assistant_id: 'whoami',
      output_key: 'report',
      configurable_schema: { properties: { language: { type: 'string' } }, additionalProperties: false },
    },
  },
}

/** Tests send far more requests than an operator. */
const NO_LIMITS = { RATE_LIMIT_UNAUTHENTICATED: '1000000', RATE_LIMIT_AUTHENTICATED: '1000000' }

/** The service as `dev` runs it, with the built console, the sandbox and the data of a test. */
export class ConsoleWorld {
  readonly url: string
  readonly program: Program
  readonly #addresses: Map<string, string>
  readonly #api: HttpClient
  readonly #tokens = new Map<Username, string>()
  readonly #pages = new Map<Username, WatchedPage>()

  static async start(settings: Settings = {}): Promise<ConsoleWorld> {
    const folder = freshFolder()
    const file = join(folder, 'job-types.json')
    writeFileSync(file, JSON.stringify(JOB_TYPES))
    const program = new Program(['dev'], {
      folder,
      settings: { PORT: String(await freePort()), JOB_TYPES_FILE: file, ...NO_LIMITS, ...settings },
    })
    await program.untilSaid(/Ctrl-C/)
    return new ConsoleWorld(program)
  }

  private constructor(program: Program) {
    this.program = program
    const lines = program.output.matchAll(/^ +([A-Z]\w+(?: \w+)?) +(http\S+)/gm)
    this.#addresses = new Map(Array.from(lines, ([, name = '', url = '']) => [name, url]))
    this.url = this.addressOf('API')
    this.#api = new HttpClient(this.url)
  }

  addressOf(name: string): string {
    const url = this.#addresses.get(name)
    assert.ok(url, `dev prints no address of ${name}`)
    return url
  }

  async tokenOf(username: Username): Promise<string> {
    const known = this.#tokens.get(username)
    if (known) return known
    const response = await fetch(`${this.addressOf('Tokens')}/local_pool/oauth2/token`, {
      method: 'POST',
      body: new URLSearchParams({ grant_type: 'password', username }),
    })
    const { access_token: token } = (await response.json()) as { access_token: string }
    this.#tokens.set(username, token)
    return token
  }

  async request<Body = Record<string, unknown>>(
    method: string,
    path: string,
    body?: unknown,
    user: Username = 'admin',
  ) {
    const token = await this.tokenOf(user)
    const answer = await this.#api.request<Body>(method, path, { token, ...(body === undefined ? {} : { body }) })
    assert.ok(answer.status < 400, `${method} ${path} gave ${answer.status}: ${answer.text}`)
    return answer.body
  }

  /** Starts a job and waits until it has this status. */
  async startJob(type: string, { status, input = {}, user = 'ada' }: JobWish): Promise<string> {
    const { id } = await this.request<{ id: string }>('POST', '/jobs', { type, input }, user)
    await this.untilJob(id, status)
    return id
  }

  async untilJob(id: string, status: string): Promise<void> {
    await until(async () => (await this.request<{ status: string }>('GET', `/jobs/${id}`)).status === status)
  }

  async setFaults(of: 'Runtime' | 'Push' | 'Webhooks', faults: Record<string, unknown>): Promise<void> {
    const response = await fetch(`${this.addressOf(of)}/sandbox/faults`, {
      method: 'PATCH',
      body: JSON.stringify(faults),
    })
    assert.equal(response.status, 200, await response.text())
  }

  /**
   * Opens a page of the console, signed in by the real flow. The tests of a file use one page of each user, one test after
   * the other. A test that leaves a trace in its page closes the page's context.
   */
  async open(path: string, { user = 'admin', ...options }: OpenOptions = {}): Promise<WatchedPage> {
    const url = `${this.url}/console${path}`
    const known = this.#pages.get(user)
    if (known && !known.page.isClosed()) {
      await reopenPage(known, url, options)
      // The session at the provider is still open, so the console asks no question.
      await known.page.locator('#navigation').waitFor({ state: 'attached' })
      return known
    }
    const watched = await openPage(url, options)
    await signIn(watched.page, user)
    this.#pages.set(user, watched)
    return watched
  }

  async close(): Promise<void> {
    for (const { page } of this.#pages.values()) await page.context().close()
    this.#api.close()
    await this.program.kill()
  }
}

export interface JobWish {
  status: string
  input?: unknown
  user?: Username
}

export interface OpenOptions extends PageOptions {
  user?: Username
}

const NAMES: Record<Username, string> = {
  ada: 'Ada Lovelace',
  grace: 'Grace Hopper',
  margaret: 'Margaret Hamilton',
  admin: 'Administrator',
}

export async function signIn(page: Page, user: Username): Promise<void> {
  if (user === 'admin') await page.getByRole('button', { name: 'Sign in as admin' }).click()
  else {
    await page.getByRole('button', { name: 'Sign in as another user' }).click()
    await page.getByRole('link', { name: NAMES[user] }).click()
  }
  await page.waitForURL((url) => url.pathname.startsWith('/console') && url.pathname !== '/console/signed-in')
}

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

/** The rules of axe that depend on colors. They take most of its time. */
const COLOR_RULES = ['color-contrast', 'link-in-text-block']

export interface AxeOptions {
  /** Only this part of the page, by its selector. */
  within?: string
  /** `only`: the rules that depend on colors; `none`: the other rules. */
  colors?: 'only' | 'none'
}

/** What axe finds on the page as it is now: `rule: element` for each finding. */
export async function findAxeFaults(page: Page, { within = 'html', colors }: AxeOptions = {}): Promise<string[]> {
  if (!(await page.evaluate(() => 'axe' in globalThis))) await page.evaluate(AXE)
  const options = {
    ...(colors === 'only' && { runOnly: COLOR_RULES }),
    ...(colors === 'none' && { rules: Object.fromEntries(COLOR_RULES.map((rule) => [rule, { enabled: false }])) }),
  }
  return page.evaluate(
    async ([context, asked]) => {
      interface Axe {
        run(where: string, how: object): Promise<{ violations: { id: string; nodes: { html: string }[] }[] }>
      }
      const { violations } = await (globalThis as unknown as { axe: Axe }).axe.run(context, asked)
      return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 200)}`))
    },
    [within, options] as const,
  )
}

/** Asserts that the page as it is now has no axe finding in either theme, and does not scroll sideways. */
export async function assertAccessible(page: Page, name: string): Promise<void> {
  for (const colorScheme of ['light', 'dark'] as const) {
    await page.emulateMedia({ colorScheme })
    // The rules about structure do not depend on the theme.
    const rules = colorScheme === 'light' ? {} : ({ colors: 'only' } as const)
    assert.deepEqual(await findAxeFaults(page, rules), [], `${name} in the ${colorScheme} theme`)
    const excess = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)
    assert.ok(excess <= 0, `${name} is ${excess} px too wide in the ${colorScheme} theme`)
  }
}
