import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import type { Page } from 'playwright-core'
import { needsChromium } from '../support/browser.ts'
import { assertAccessible, ConsoleWorld } from '../support/console.ts'
import { freshFolder } from '../support/program.ts'
import { until } from '../support/until.ts'

const LONG = '9007199254740993'
const { rawJSON } = JSON as unknown as { rawJSON(text: string): unknown }

const FIELDS = {
  account: { type: 'integer', title: 'Account' },
  amount: { type: 'number', title: 'Amount' },
  copies: { type: 'integer', title: 'Copies', description: 'How many to print.', minimum: 1, maximum: 100 },
}
const OPTIONAL_FIELDS = {
  note: { type: 'string', title: 'Note' },
  copies: { type: 'integer', title: 'Copies', minimum: 1 },
  color: { enum: ['red', 'blue'], title: 'Color' },
  urgent: { type: 'boolean', title: 'Urgent' },
  address: {
    type: 'object',
    properties: { street: { type: 'string', title: 'Street' }, number: { type: 'integer', title: 'House number' } },
    required: ['street', 'number'],
  },
}
/** Each graph returns the answer as its output. `both` asks two questions at once. */
const JOB_TYPES = {
  order: {
    assistant_id: 'pause',
    output_key: 'report',
    resume_schema: { type: 'object', properties: FIELDS, required: Object.keys(FIELDS) },
  },
  delivery: {
    assistant_id: 'pause',
    output_key: 'report',
    resume_schema: { type: 'object', properties: OPTIONAL_FIELDS },
  },
  anything: { assistant_id: 'pause', output_key: 'report' },
  both: { assistant_id: 'ask_both', output_key: 'report' },
  hurried: { assistant_id: 'pause', output_key: 'report', answer_within_seconds: 3_600, remind_after_seconds: 1_800 },
}

/** The answer in a request, which names the one question that it answers. */
function answerIn(sent: string | null): string {
  const [, answer] = /^\{"answers":\{"\w+":(.*)\}\}$/.exec(sent ?? '') ?? []
  assert.ok(answer !== undefined, String(sent))
  return answer
}

describe('answers to questions in the console', needsChromium(), () => {
  let world: ConsoleWorld
  before(async () => {
    const file = join(freshFolder(), 'job-types.json')
    writeFileSync(file, JSON.stringify({ types: JOB_TYPES }))
    world = await ConsoleWorld.start({ JOB_TYPES_FILE: file })
  })
  after(() => world.close())

  const formOf = (page: Page) => page.getByRole('form', { name: 'Answer' })
  const sendButton = (page: Page) => formOf(page).getByRole('button', { name: 'Send the answer' })
  const ask = (type: string) => world.startJob(type, { status: 'awaiting_input' })

  /** Sends the answer, and returns the text of the request and of the output that the graph makes of it. */
  async function send(page: Page, id: string): Promise<{ sent: string | null; stored: string }> {
    const requested = page.waitForRequest(`**/jobs/${id}/resume`)
    await sendButton(page).click()
    const sent = (await requested).postData()
    await world.untilJob(id, 'completed')
    const token = await world.tokenOf('admin')
    const response = await fetch(`${world.url}/jobs/${id}`, { headers: { authorization: `Bearer ${token}` } })
    return { sent, stored: await response.text() }
  }

  test('the pages of a job, of jobs and of questions show when a question expires and when a delayed job starts', async () => {
    const asking = await ask('hurried')
    const run_at = new Date(Date.now() + 7_200_000).toISOString()
    const delayed = await world.request<{ id: string }>('POST', '/jobs', { type: 'anything', input: {}, run_at }, 'ada')
    const { page, complaints } = await world.open(`/jobs/${asking}`)
    const facts = page.getByRole('region', { name: 'Facts' })
    await facts.getByText('Answer expires').waitFor()
    await assertAccessible(page, 'a job whose question expires')
    await world.open(`/jobs/${delayed.id}`)
    await facts.getByText('Planned start', { exact: true }).waitFor()
    await world.open('/jobs')
    await page
      .getByRole('row', { name: delayed.id })
      .getByText(/starts in/)
      .waitFor()
    await page
      .getByRole('row', { name: asking })
      .getByText(/expires in/)
      .waitFor()
    await assertAccessible(page, 'a list with a delayed job')
    await world.open('/waiting')
    await page
      .getByRole('region', { name: asking })
      .getByText(/, expires in/)
      .waitFor()
    await world.open('/job-types')
    await page.getByRole('region', { name: 'hurried' }).getByText('Reminder after').waitFor()
    assert.deepEqual(complaints, [])
  })

  interface Asking {
    interrupts: { value: { question: string } }[] | null
  }
  const questionOf = async (id: string) =>
    (await world.request<Asking>('GET', `/jobs/${id}`)).interrupts?.[0]?.value.question
  /** A job that asks `First?` and then `Publish it?`. */
  const askTwice = () =>
    world.startJob('anything', { status: 'awaiting_input', input: { sandbox: { pause: 'First?' } } })

  test('an answer never reaches a question that came after the one on the screen, and its draft is not kept', async () => {
    const id = await askTwice()
    const { page } = await world.open(`/jobs/${id}`)
    await formOf(page).getByText('First?').waitFor()
    const job = await world.request('GET', `/jobs/${id}`)
    // The page keeps showing the job as it was.
    await page.route(`**/jobs/${id}`, (route) => route.fulfill({ json: job }))
    await world.request('POST', `/jobs/${id}/resume`, { input: 'from the app' }, 'ada')
    await until(async () => (await questionOf(id)) === 'Publish it?')
    await formOf(page).getByLabel('Answer').fill('"from the console"')
    await sendButton(page).click()
    await page.locator('.toast').filter({ hasText: 'body/answers must not have' }).waitFor()
    assert.equal(await questionOf(id), 'Publish it?')
    await page.unrouteAll({ behavior: 'wait' })
    await formOf(page).getByText('Publish it?').waitFor()
    assert.equal(await formOf(page).getByLabel('Answer').inputValue(), '')
    await formOf(page).getByLabel('Answer').fill('1')
    assert.match((await send(page, id)).stored, /"answer":1/)
  })

  test('a question that follows an answer at once is shown with a new form', async () => {
    const id = await askTwice()
    const { page, complaints } = await world.open(`/jobs/${id}`)
    await formOf(page).getByLabel('Answer').fill('"yes"')
    let hasAnswered = false
    await page.route(`**/jobs/${id}`, async (route) => {
      if (hasAnswered) await until(async () => (await questionOf(id)) === 'Publish it?')
      await route.continue()
    })
    const answered = page.waitForRequest(`**/jobs/${id}/resume`)
    hasAnswered = true
    await sendButton(page).click()
    await answered
    await formOf(page).getByText('Publish it?').waitFor()
    assert.equal(await formOf(page).getByLabel('Answer').inputValue(), '')
    assert.deepEqual(complaints, [])
  })

  test('a question that is a number is shown with every digit', async () => {
    const input = { sandbox: { pause: { question: rawJSON(LONG) } } }
    const id = await world.startJob('anything', { status: 'awaiting_input', input })
    const { page } = await world.open(`/jobs/${id}`)
    await formOf(page).getByText(LONG).waitFor()
  })

  for (const [amount, copies] of [
    ['1e400', '100'],
    ['-0', '1.0'],
  ] as const) {
    test(`number fields send ${LONG}, ${amount} and ${copies} as they were typed`, async () => {
      const id = await ask('order')
      const { page, complaints } = await world.open(`/jobs/${id}`)
      await formOf(page).getByLabel('Account').fill(LONG)
      await formOf(page).getByLabel('Amount').fill(amount)
      await formOf(page).getByLabel('Copies').fill(copies)
      const { sent, stored } = await send(page, id)
      const answer = `{"account":${LONG},"amount":${amount},"copies":${copies}}`
      assert.equal(answerIn(sent), answer)
      assert.ok(stored.includes(`"answer":${answer}`), stored)
      assert.deepEqual(complaints, [])
    })
  }

  test('JSON that an operator types is sent with every digit', async () => {
    const id = await ask('anything')
    const { page, complaints } = await world.open(`/jobs/${id}`)
    await sendButton(page).click()
    await formOf(page).getByText('Type an answer.').waitFor()
    await formOf(page).getByLabel('Answer').fill(`{ "id": ${LONG}, "list": [1e400, -0, 1.0], "text": "1.0" }`)
    const { sent, stored } = await send(page, id)
    const answer = `{"id":${LONG},"list":[1e400,-0,1.0],"text":"1.0"}`
    assert.equal(answerIn(sent), answer)
    assert.ok(stored.includes(`"answer":${answer}`), stored)
    assert.deepEqual(complaints, [])
  })

  test('answers to several questions are sent with every digit', async () => {
    const id = await ask('both')
    const { page } = await world.open(`/jobs/${id}`)
    await formOf(page).getByLabel('Answer').first().fill(LONG)
    await formOf(page).getByLabel('Answer').last().fill('1e400')
    const { sent } = await send(page, id)
    assert.match(sent ?? '', new RegExp(`^{"answers":{"\\w+":${LONG},"\\w+":1e400}}$`))
  })

  test('a choice is shown and sent with every digit', async () => {
    const id = await ask('anything')
    const { page } = await world.open(`/jobs/${id}`)
    await formOf(page).waitFor()
    // The service rounds the numbers of a schema, so the test answers in its place.
    const schema = `{"title":"Account","enum":["none",${LONG},1.0]}`
    await page.route('**/v1/job-types', (route) =>
      route.fulfill({
        contentType: 'application/json',
        body: `{"data":[{"name":"anything","resume_schema":${schema}}]}`,
      }),
    )
    await page.reload()
    await formOf(page).getByLabel('Account').selectOption({ label: '1.0' })
    await formOf(page).getByLabel('Account').selectOption({ label: LONG })
    const { sent } = await send(page, id)
    assert.equal(answerIn(sent), LONG)
  })

  test('optional fields that are empty, untouched or emptied again, are not sent', async () => {
    const id = await ask('delivery')
    const { page, complaints } = await world.open(`/jobs/${id}`)
    const field = (label: string) => formOf(page).getByLabel(label)
    assert.equal(await field('Color').inputValue(), '', 'what is shown is what is sent')
    for (const [label, text] of [
      ['Note', 'By the door'],
      ['Copies', '2'],
      ['Street', 'Main Street'],
      ['House number', '1'],
    ] as const) {
      await field(label).fill(text)
      await field(label).fill('')
    }
    await field('Color').selectOption('blue')
    await field('Color').selectOption('Not set')
    const { sent } = await send(page, id)
    assert.equal(answerIn(sent), '{}')
    assert.deepEqual(complaints, [])
  })

  test('optional fields that are filled in are sent, and so are the required fields of their object', async () => {
    const id = await ask('delivery')
    const { page } = await world.open(`/jobs/${id}`)
    const field = (label: string) => formOf(page).getByLabel(label)
    await field('Copies').fill('0')
    await sendButton(page).click()
    await formOf(page).getByText('Type a number of at least 1.').waitFor()
    await field('Copies').fill('2')
    await field('Color').selectOption('red')
    await field('Urgent').check()
    await field('Street').fill('Main Street')
    await sendButton(page).click()
    await formOf(page).getByText('Type a whole number').waitFor()
    await field('House number').fill('7')
    const { sent } = await send(page, id)
    const answer = { copies: 2, color: 'red', urgent: true, address: { street: 'Main Street', number: 7 } }
    assert.deepEqual(JSON.parse(answerIn(sent)), answer)
  })

  test('text that is not a number, or does not fit the schema, is refused next to its field', async () => {
    const id = await ask('order')
    const { page, complaints } = await world.open(`/jobs/${id}`)
    await formOf(page).getByLabel('Account').fill(LONG)
    // Copied from a table, with a space that JSON does not allow.
    await formOf(page).getByLabel('Amount').fill('\u00a05 ')
    const refusals: [field: string, text: string, message: string][] = [
      ['Amount', 'ten', 'Type a number, for example 12, -0.5 or 1e6.'],
      ['Amount', '1,5', 'Type a number, for example 12, -0.5 or 1e6.'],
      ['Amount', '0x10', 'Type a number, for example 12, -0.5 or 1e6.'],
      ['Amount', ' ', 'Type a number, for example 12, -0.5 or 1e6.'],
      ['Account', '1.5', 'Type a whole number, for example 12.'],
      ['Account', 'Infinity', 'Type a whole number, for example 12.'],
      ['Copies', '', 'Type a whole number, for example 12.'],
      ['Copies', '0', 'Type a number of at least 1.'],
      ['Copies', '101', 'Type a number of at most 100.'],
    ]
    let requests = 0
    page.on('request', (request) => {
      if (request.url().endsWith('/resume')) requests += 1
    })
    await formOf(page).getByLabel('Copies').fill('2')
    for (const [field, text, message] of refusals) {
      const input = formOf(page).getByLabel(field)
      const good = await input.inputValue()
      await input.fill(text)
      await sendButton(page).click()
      const shown = formOf(page).locator('label').filter({ hasText: field }).getByText(message)
      await shown.waitFor()
      assert.ok(await input.evaluate((element) => element === document.activeElement), `${field} has no focus`)
      await input.fill(good)
      await shown.waitFor({ state: 'detached' })
    }
    assert.equal(requests, 0)
    const { sent } = await send(page, id)
    assert.equal(answerIn(sent), `{"account":${LONG},"amount":5,"copies":2}`)
    assert.deepEqual(complaints, [])
  })

  for (const size of ['desktop', 'phone'] as const) {
    test(`a refused number has no axe finding in either theme on a ${size}`, async () => {
      const id = await ask('order')
      const { page, complaints } = await world.open(`/jobs/${id}`, { size })
      const account = formOf(page).getByLabel('Account')
      await account.fill('ten')
      // A message that appears when the field is left would move the button away from the pointer.
      const place = await sendButton(page).boundingBox()
      await account.blur()
      assert.deepEqual(await sendButton(page).boundingBox(), place)
      await sendButton(page).click()
      await formOf(page).getByText('Type a number, for example').waitFor()
      assert.equal(await formOf(page).getByText('Type a whole number').count(), 2)
      await assertAccessible(page, 'the form')
      assert.deepEqual(complaints, [])
    })
  }

  test('a browser that cannot write exact numbers refuses one that it would change', async () => {
    const message = 'This browser would change a number that you typed.'
    const [order, anything] = [await ask('order'), await ask('anything')]
    const { page } = await world.open(`/jobs/${order}`)
    await formOf(page).waitFor()
    await page.addInitScript(() => Reflect.deleteProperty(JSON, 'rawJSON'))
    await page.reload()
    await formOf(page).getByLabel('Account').fill(LONG)
    await formOf(page).getByLabel('Amount').fill('0.5')
    await formOf(page).getByLabel('Copies').fill('2')
    await sendButton(page).click()
    await formOf(page).getByText(message).waitFor()
    await formOf(page).getByLabel('Account').fill('12')
    assert.equal(answerIn((await send(page, order)).sent), '{"account":12,"amount":0.5,"copies":2}')

    await page.goto(`${world.url}/console/jobs/${anything}`)
    await formOf(page).getByLabel('Answer').fill('[1.0, "2.0"]')
    await sendButton(page).click()
    await formOf(page).getByText(message).waitFor()
    await formOf(page).getByLabel('Answer').fill('[1, "2.0"]')
    assert.equal(answerIn((await send(page, anything)).sent), '[1,"2.0"]')
    await page.context().close()
  })
})
