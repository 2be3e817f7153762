import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createChatTransport, type JobChatTransport } from '../../client/src/ai-sdk/chat-transport.ts'
import { createClient } from '../../client/src/client.ts'

/** As `project-api types` prints them. */
interface JobTypes {
  report: { input: { title: string; n: number }; output: { title: string }; resume: never }
  agent: {
    input: { messages: { role: 'user' | 'assistant'; content: string }[] }
    output: string
    resume: { decision: 'approved' | 'rejected' }
  }
}

const api = createClient<JobTypes>({ url: 'http://127.0.0.1:1' })

/** The compiler checks this function; it is never called. No call has an expected type, which would help the compiler. */
function inferred(): void {
  createChatTransport({ api, type: 'agent', toInput: ({ id }) => ({ messages: [{ role: 'user', content: id }] }) })
  createChatTransport({
    api,
    type: 'agent',
    toAnswer: (_message, { value }) => ({ decision: value === 1 ? 'approved' : 'rejected' }),
  })
  const transport = createChatTransport({ api, type: 'agent', toText: (output) => output.trim() })
  transport satisfies JobChatTransport<JobTypes, 'agent'>
}

/** The check fails if a line after `@ts-expect-error` compiles. */
function mistakes(): void {
  // @ts-expect-error There is no such role.
  createChatTransport({ api, type: 'agent', toInput: ({ id }) => ({ messages: [{ role: 'boss', content: id }] }) })
  // @ts-expect-error This is the input of another type.
  createChatTransport({ api, type: 'agent', toInput: ({ id }) => ({ title: id, n: 1 }) })
  // @ts-expect-error There is no such decision.
  createChatTransport({ api, type: 'agent', toAnswer: () => ({ decision: 'maybe' }) })
  // @ts-expect-error There is no such job type.
  createChatTransport({ api, type: 'summary' })
}

test('literals in the input and the answer of a chat are typed by the job type: the compiler checks this file', () => {
  assert.ok([inferred, mistakes].every((checked) => typeof checked === 'function'))
})
