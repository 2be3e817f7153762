import assert from 'node:assert/strict'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { type ApiClient, createClient } from '../../client/src/client.ts'
import { JobAwaitingInput } from '../../client/src/errors.ts'
import { addLivePart, EMPTY_TRANSCRIPT, type LiveTranscript } from '../../client/src/jobs/live-transcript.ts'
import { closeFetchConnections } from '../support/fetch-connections.ts'
import { type LangGraph, startLangGraph } from '../support/langgraph.ts'
import { freshFolder } from '../support/program.ts'
import { sharedIssuer, startServe } from '../support/served.ts'

const JOB_TYPES = {
  types: {
    agent: { assistant_id: 'agent', live: ['messages', 'custom'] },
    talk: { assistant_id: 'talk', output_key: 'messages', live: ['messages', 'custom'] },
    pause: { assistant_id: 'pause', output_key: 'report', live: ['messages'] },
    report: { assistant_id: 'report', output_key: 'report', may_pause: false },
  },
}

interface Types {
  agent: { input: { messages: { role: 'user'; content: string }[] }; output: string }
  talk: { input: { messages: object[]; prompt?: number }; output: object[] }
  pause: { input: { title: string }; output: { title: string; answer: string }; resume: string }
  report: { input: { title: string; n: number }; output: { title: string; n: number } }
}

const said = (content: string) => ({ messages: [{ role: 'user' as const, content }] })

describe('the client on the real runtime', () => {
  let runtime: LangGraph
  before(async () => {
    runtime = await startLangGraph()
  })
  after(async () => {
    await closeFetchConnections()
    await runtime?.stop()
  })

  for (const variant of ['A', 'B']) {
    describe(`as variant ${variant}`, () => {
      let api: ApiClient<Types>
      before(async () => {
        const folder = freshFolder()
        writeFileSync(join(folder, 'job-types.json'), JSON.stringify(JOB_TYPES))
        // Without a public URL the runtime sends no callback: the service finds the end by streams and reads.
        const settings = { API_VARIANT: variant, RUNTIME_URL: runtime.url }
        const { url } = await startServe({ folder, settings })
        const issuer = await sharedIssuer()
        api = createClient<Types>({ url, token: () => issuer.mint({ user: 'ada' }) })
      })

      test('the client starts a job and returns its typed result', async () => {
        const job = await api.jobs.start('report', { title: 'Sales', n: 3 })
        assert.deepEqual(await job.result(), { title: 'Sales', n: 3 })
      })

      test('the live output arrives piece by piece, and ends with the job', async () => {
        const job = await api.jobs.start('talk', { messages: [] })
        const shown: LiveTranscript[] = [EMPTY_TRANSCRIPT]
        for await (const part of job.live()) shown.push(addLivePart(shown.at(-1) ?? EMPTY_TRANSCRIPT, part))
        const last = shown.at(-1)
        assert.equal(last?.text, 'One two three four\n\nThat was all.')
        assert.equal(last?.reasoning, 'Hm.')
        assert.deepEqual([last?.progress, last?.step, last?.status], ['half', 'close', 'completed'])
        for (const text of ['One ', 'One two ', 'One two three '])
          assert.ok(
            shown.some((one) => one.text === text),
            text,
          )
        assert.equal((await job.get()).status, 'completed')
      })

      test('the next turn of a conversation runs on the same thread, with its own output', async () => {
        const first = await api.jobs.start('agent', said('Hello'))
        assert.equal(await first.result(), 'You said: Hello')
        const second = await first.continue(said('And now'))
        assert.equal(await second.result(), 'You said: And now')
        assert.equal(second.data?.thread_id, first.data?.thread_id)
        assert.notEqual(second.id, first.id)
      })

      test('a question is thrown and answered, and the live output of the next run is shown to its end', async () => {
        const job = await api.jobs.start('pause', { title: 'Plan' })
        const ends: string[] = []
        for await (const part of job.live()) if (part.type === 'end') ends.push(part.status)
        await assert.rejects(job.result(), (error) => {
          assert.ok(error instanceof JobAwaitingInput)
          assert.deepEqual(error.interrupts[0]?.value, { question: 'Publish it?' })
          return true
        })
        await job.answer('yes')
        for await (const part of job.live()) if (part.type === 'end') ends.push(part.status)
        assert.deepEqual(ends, ['awaiting_input', 'completed'])
        assert.deepEqual(await job.result(), { title: 'Plan', answer: 'yes' })
      })
    })
  }
})
