import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { afterEach, describe, test } from 'node:test'
import {
  AbstractChat,
  type ChatInit,
  type ChatState,
  readUIMessageStream,
  type UIMessage,
  type UIMessageChunk,
} from 'ai'
import { type ChatMessage, type ChatMetadata, textOfMessage } from '../../client/src/ai-sdk/chat-messages.ts'
import { createChatTransport } from '../../client/src/ai-sdk/chat-transport.ts'
import { ChunkWriter } from '../../client/src/ai-sdk/chunks.ts'
import { createClient } from '../../client/src/client.ts'
import type { LiveMessage, LivePart } from '../../client/src/jobs/live.ts'
import { addLivePart, EMPTY_TRANSCRIPT } from '../../client/src/jobs/live-transcript.ts'
import { type JobTypes, toJobTypes } from '../../src/jobs/job-types.ts'
import { closeFetchConnections } from '../support/fetch-connections.ts'
import { type JobWorld, startJobWorld } from '../support/job-world.ts'
import { overTime } from '../support/over-time.ts'
import { forEachVariant } from '../support/service.ts'

/** A message as `useChat` assembles it from its chunks. */
interface Shown {
  id: string
  metadata: ChatMetadata
  text: string
  reasoning: string
  tools: Record<string, { name: string; input: unknown; output?: unknown }>
  data: { type: string; data: unknown }[]
  errors: string[]
}

/** Assembles chunks. Fails where `useChat` would fail: on a delta of a part that is not open. */
function put(chunks: readonly UIMessageChunk[]): Shown {
  const empty = () => ({ text: '', reasoning: '', tools: {}, data: [], errors: [] })
  const shown: Shown = { id: '', metadata: {}, ...empty() }
  const open = new Set<string>()
  for (const chunk of chunks) {
    switch (chunk.type) {
      case 'start':
        shown.id = chunk.messageId ?? ''
        Object.assign(shown.metadata, chunk.messageMetadata)
        break
      case 'message-metadata':
      case 'finish':
        Object.assign(shown.metadata, chunk.messageMetadata)
        break
      case 'reset-step':
        Object.assign(shown, empty())
        open.clear()
        break
      case 'text-start':
      case 'reasoning-start':
        open.add(chunk.id)
        break
      case 'text-end':
      case 'reasoning-end':
        assert.ok(open.delete(chunk.id), `${chunk.id} is not open`)
        break
      case 'text-delta':
      case 'reasoning-delta':
        assert.ok(open.has(chunk.id), `${chunk.id} is not open`)
        shown[chunk.type === 'text-delta' ? 'text' : 'reasoning'] += chunk.delta
        break
      case 'tool-input-available':
        shown.tools[chunk.toolCallId] = { name: chunk.toolName, input: chunk.input }
        break
      case 'tool-output-available': {
        const call = shown.tools[chunk.toolCallId]
        assert.ok(call, 'The output of an unknown call')
        call.output = chunk.output
        break
      }
      case 'error':
        shown.errors.push(chunk.errorText)
        break
      default:
        if (chunk.type.startsWith('data-')) shown.data.push(chunk as Shown['data'][number])
    }
  }
  assert.equal(open.size, 0, 'A part stayed open')
  return shown
}

async function read(
  stream: ReadableStream<UIMessageChunk>,
  count = Number.POSITIVE_INFINITY,
): Promise<UIMessageChunk[]> {
  const chunks: UIMessageChunk[] = []
  for await (const chunk of stream) {
    chunks.push(chunk)
    if (chunks.length >= count) break
  }
  return chunks
}

const said = (text: string, metadata: object = {}): UIMessage & { metadata: object } => ({
  id: randomUUID(),
  role: 'user',
  parts: [{ type: 'text', text }],
  metadata,
})

const SUBMIT = { trigger: 'submit-message', messageId: undefined } as const

/** The metadata of the message controls the sandbox. */
const toInput = (message: UIMessage) => ({
  messages: [{ role: 'user', content: textOfMessage(message) }],
  sandbox: message.metadata,
})

/** The chat of the AI SDK, as `useChat` has it, without React. */
class PlainChat extends AbstractChat<ChatMessage> {
  constructor({ messages = [], ...init }: ChatInit<ChatMessage>) {
    const state: ChatState<ChatMessage> = {
      status: 'ready',
      error: undefined,
      messages: [...messages],
      pushMessage: (message) => void state.messages.push(message),
      popMessage: () => void state.messages.pop(),
      replaceMessage: (place, message) => void state.messages.splice(place, 1, message),
      snapshot: (value) => structuredClone(value),
    }
    super({ ...init, state })
  }
}

interface ChatSettings {
  onBusy?: 'interrupt' | 'reject'
  cancelOnStop?: boolean
  type?: string
  streaming?: boolean
  toConfigurable?: (message: UIMessage) => Record<string, unknown>
  jobTypes?: JobTypes
}

describe('a chat on the AI SDK', () => {
  forEachVariant((under) => {
    afterEach(closeFetchConnections)

    /** A chat like one of `useChat`. Its first message begins a conversation, whose id is that of the chat from then on. */
    async function startChat({ jobTypes, streaming = true, ...own }: ChatSettings = {}) {
      const world = await startJobWorld(under, jobTypes ? { jobTypes } : {})
      const token = () => world.token('ada')
      // Polls follow the client's clock, streams the service's clock.
      const newApi = () =>
        createClient({ url: world.service.url, token, random: () => 0, streaming, clock: world.clock })
      const api = newApi()
      const openTab = (address: string, messages: UIMessage[]) => {
        let page = address
        const onConversation = ({ threadId }: { threadId: string }) => {
          page = threadId
        }
        const newTransport = () =>
          createChatTransport({ api: newApi(), type: 'agent', toInput, onConversation, ...own })
        let transport = newTransport()
        let chatId = page
        const send = async (message: UIMessage, abortSignal?: AbortSignal) => {
          messages.push(message)
          return overTime(world, transport.sendMessages({ ...SUBMIT, chatId, messages, abortSignal }))
        }
        const show = async (stream: ReadableStream<UIMessageChunk>): Promise<Shown> => {
          const shown = put(await overTime(world, read(stream)))
          messages.push({ id: shown.id, role: 'assistant', parts: [], metadata: shown.metadata })
          return shown
        }
        const turn = async (message: UIMessage): Promise<Shown> => show(await send(message))
        /** Clears the memory of the page. Its address stays. */
        const reload = () => {
          transport = newTransport()
          chatId = page
        }
        const load = () => overTime(world, transport.load(page))
        const reconnect = () => overTime(world, transport.reconnectToStream({ chatId }))
        const cancel = () => overTime(world, transport.cancel(chatId))
        const regenerate = async () => {
          messages.pop()
          const options = {
            ...SUBMIT,
            trigger: 'regenerate-message',
            chatId,
            messages,
            abortSignal: undefined,
          } as const
          return put(await overTime(world, read(await overTime(world, transport.sendMessages(options)))))
        }
        /** A second tab that shows the same messages. */
        const copy = () => openTab(page, [...messages])
        /** Another device of the user, which knows only the address of the chat. */
        const openElsewhere = async () => {
          const tab = openTab(page, [])
          tab.messages.push(...(await tab.load()))
          return tab
        }
        return { messages, send, show, turn, reload, load, reconnect, cancel, regenerate, copy, openElsewhere }
      }
      const jobs = async () => (await overTime(world, api.jobs.list().page())).data
      return { world, api, jobs, ...openTab('chat', []) }
    }

    test('each turn and each answer of a chat is configured', async () => {
      const schema = { properties: { model: { type: 'string' } }, additionalProperties: false }
      const agent = { assistant_id: 'agent', configurable_schema: schema }
      const toConfigurable = (message: UIMessage) => ({ model: textOfMessage(message) })
      const { world, turn } = await startChat({ toConfigurable, jobTypes: toJobTypes({ agent }) })
      const models = () => world.runtime.recentRuns.map(({ configurable }) => configurable.model)
      await turn(said('small', { pause: 'Which one?' }))
      await turn(said('medium'))
      await turn(said('large'))
      assert.deepEqual(models(), ['large', 'medium', 'small'])
    })

    test('a chat shows reasoning, text, tool calls and progress of the run, and the next turn continues the conversation', async () => {
      const { api, turn } = await startChat()
      const tool = { name: 'search', args: { q: 'weather' }, result: 'sunny' }
      const first = await turn(
        said('How is it?', { say: 'It is sunny', think: 'Let me see', tool, progress: [{ percent: 5 }] }),
      )
      assert.equal(first.text, 'It is sunny')
      assert.equal(first.reasoning, 'Let me see')
      assert.deepEqual(Object.values(first.tools), [{ name: 'search', input: { q: 'weather' }, output: 'sunny' }])
      assert.deepEqual(first.data, [{ type: 'data-progress', id: 'progress', data: { percent: 5 } }])
      assert.equal(first.metadata.jobId, first.id)
      const second = await turn(said('And now?', { say: 'Still sunny' }))
      assert.equal(second.text, 'Still sunny')
      const job = await api.jobs.get(second.id)
      assert.equal(job.data?.continues, first.id)
    })

    test('a question is a data part, the next message answers it, and the new output is a separate message', async () => {
      const { turn } = await startChat()
      const asked = await turn(said('Publish', { pause: 'Really?', say: 'Done' }))
      const [question] = asked.data
      assert.equal(question?.type, 'data-question')
      const { jobId, value, interruptId } = (question?.data ?? {}) as Record<string, unknown>
      assert.deepEqual([jobId, value, typeof interruptId], [asked.id, { question: 'Really?' }, 'string'])
      const answered = await turn(said('yes'))
      assert.equal(answered.text, 'Done')
      assert.equal(answered.metadata.jobId, asked.id)
      assert.equal(answered.id, `${asked.id}.2`)
    })

    test('a reload in the middle of an answer resumes it from its beginning, and a finished one is not repeated', async () => {
      const { send, reload, reconnect, world } = await startChat()
      assert.equal(await reconnect(), null)
      const text = 'one two three four five six seven eight'
      const stream = await send(said('Count', { say: text, duration_ms: 4_000 }))
      await overTime(world, read(stream, 4))
      reload()
      const resumed = await reconnect()
      assert.ok(resumed)
      assert.equal(put(await overTime(world, read(resumed))).text, text)
      reload()
      assert.equal(await reconnect(), null)
    })

    test('an answer that ended while the chat was not mounted is shown completely, and loaded after a reload', async () => {
      const { send, reload, reconnect, load, world, api } = await startChat()
      const stream = await send(said('Quick', { say: 'all of it' }))
      await stream.cancel()
      const [job] = (await overTime(world, api.jobs.list().page())).data
      await overTime(world, api.jobs.handle(String(job?.id)).result())
      const resumed = await reconnect()
      assert.ok(resumed)
      const shown = put(await overTime(world, read(resumed)))
      assert.deepEqual([shown.text, shown.id], ['all of it', job?.id])
      reload()
      assert.equal(await reconnect(), null)
      assert.deepEqual((await load()).map(textOfMessage), ['Quick', 'all of it'])
    })

    test('another device loads the chat, joins the turn that runs, and its message waits for that turn', async () => {
      const { turn, send, show, openElsewhere, jobs, world } = await startChat()
      await turn(said('Hello', { say: 'Welcome' }))
      const text = 'one two three four'
      const stream = await send(said('Count', { say: text, duration_ms: 4_000 }))
      await overTime(world, read(stream, 4))
      const phone = await openElsewhere()
      assert.deepEqual(
        phone.messages.map((message) => [message.role, textOfMessage(message)]),
        [
          ['user', 'Hello'],
          ['assistant', 'Welcome'],
          ['user', 'Count'],
        ],
      )
      const joined = await phone.reconnect()
      assert.ok(joined)
      const next = phone.turn(said('And then?', { say: 'The end' }))
      assert.equal((await phone.show(joined)).text, text)
      assert.equal((await next).text, 'The end')
      assert.deepEqual(
        (await jobs()).map(({ status, output }) => [status, output]),
        [
          ['completed', 'The end'],
          ['completed', text],
          ['completed', 'Welcome'],
        ],
      )
      assert.equal(await show(await send(said('Thanks', { say: 'Bye' }))).then((shown) => shown.text), 'Bye')
    })

    test('a message in a second tab does not cancel the answer of the first tab, which is shown to its end', async () => {
      const { turn, send, show, copy, jobs } = await startChat()
      await turn(said('Hello', { say: 'Welcome' }))
      const second = copy()
      const stream = await send(said('Count', { say: 'one two three', duration_ms: 4_000 }))
      const other = second.turn(said('Something else', { say: 'Here it is' }))
      const first = await show(stream)
      assert.deepEqual([first.text, first.metadata.status], ['one two three', 'completed'])
      assert.equal((await other).text, 'Here it is')
      assert.ok((await jobs()).every(({ status }) => status === 'completed'))
    })

    test('with onBusy interrupt, a message in a second tab cancels the answer of the first tab, which says so', async () => {
      const { turn, send, show, copy, load } = await startChat({ onBusy: 'interrupt' })
      await turn(said('Hello', { say: 'Welcome' }))
      const second = copy()
      const stream = await send(said('Count', { say: 'one two three', duration_ms: 60_000 }))
      const other = second.turn(said('Something else', { say: 'Here it is' }))
      const first = await show(stream)
      assert.equal(first.metadata.status, 'cancelled')
      assert.equal((await other).text, 'Here it is')
      const loaded = (await load()).filter(({ role }) => role === 'assistant')
      assert.deepEqual(
        loaded.map((message) => [textOfMessage(message), message.metadata?.status]),
        [
          ['Welcome', 'completed'],
          ['', 'cancelled'],
          ['Here it is', 'completed'],
        ],
      )
    })

    test('with onBusy reject, a message while a turn runs is an error, and nothing is cancelled', async () => {
      const { turn, send, copy, jobs } = await startChat({ onBusy: 'reject' })
      await turn(said('Hello', { say: 'Welcome' }))
      const second = copy()
      await send(said('Count', { say: 'one two three', duration_ms: 60_000 }))
      await assert.rejects(second.send(said('Something else')), { code: 'conflict' })
      assert.deepEqual(
        (await jobs()).map(({ status }) => status === 'cancelled'),
        [false, false],
      )
    })

    test('a message does not answer a question that its device has not shown: the question is shown first', async () => {
      const { turn, copy, openElsewhere, world } = await startChat()
      await turn(said('Hello', { say: 'Welcome' }))
      const stale = copy()
      const asked = await turn(said('Publish', { pause: 'Really?', say: 'Done' }))
      const shown = await stale.turn(said('Something else'))
      assert.deepEqual(shown.data, asked.data)
      assert.equal((await world.stored(asked.id)).status, 'awaiting_input')
      const phone = await openElsewhere()
      assert.equal(await phone.reconnect(), null)
      assert.equal((await phone.turn(said('yes'))).text, 'Done')
    })

    test('a loaded chat has questions, answers, errors and the ids of its messages as they were shown', async () => {
      const { turn, messages, load } = await startChat()
      await turn(said('Publish', { pause: 'Really?', say: 'Done' }))
      await turn(said('yes'))
      await turn(said('Fail', { fail: 'no luck' }))
      const loaded = await load()
      const answers = ({ role }: UIMessage) => role === 'assistant'
      const metadata = (all: UIMessage[]) => all.filter(answers).map((one) => [one.id, one.metadata])
      assert.deepEqual(metadata(loaded), metadata(messages))
      assert.deepEqual(loaded.map(textOfMessage), ['Publish', '', 'yes', 'Done', 'Fail', ''])
      assert.equal(loaded[1]?.parts[0]?.type, 'data-question')
      assert.equal(loaded.at(-1)?.metadata?.error?.code, 'run_failed')
      assert.equal(new Set(loaded.map(({ id }) => id)).size, loaded.length)
    })

    test('a chat whose id is a UUID that no conversation has begins one, and a cleared chat begins another', async () => {
      const { world, api } = await startChat()
      const threads: string[] = []
      const onConversation = ({ threadId }: { threadId: string }) => threads.push(threadId)
      const transport = createChatTransport({ api, type: 'agent', toInput, onConversation })
      const begin = async (chatId: string) => {
        const send = transport.sendMessages({ ...SUBMIT, chatId, messages: [said('Hi')], abortSignal: undefined })
        await overTime(world, read(await overTime(world, send)))
      }
      const chatId = randomUUID()
      await begin(chatId)
      await begin(chatId)
      assert.deepEqual([new Set(threads).size, threads.includes(chatId)], [1, false])
      await begin('mine')
      await begin('mine')
      assert.equal(new Set(threads).size, 3)
    })

    test('if the runtime does not stream, the whole answer appears at the end', async () => {
      const { turn, world } = await startChat()
      world.runtime.setFaults({ refuse_streams: true })
      assert.equal((await turn(said('Hi', { say: 'Late but whole' }))).text, 'Late but whole')
    })

    test('a failed run is an error of the chat, and the conversation goes on after it', async () => {
      const { turn } = await startChat()
      const failed = await turn(said('Fail', { fail: 'no luck' }))
      assert.equal(failed.errors.length, 1)
      assert.equal((await turn(said('Again', { say: 'Better' }))).text, 'Better')
    })

    test('a stopped or unmounted chat leaves its job running, unless cancelOnStop is set', async () => {
      for (const { cancelOnStop, whileItStarts } of [
        { cancelOnStop: true, whileItStarts: false },
        { cancelOnStop: true, whileItStarts: true },
        { cancelOnStop: false, whileItStarts: false },
      ]) {
        const { send, world, api } = await startChat({ cancelOnStop })
        const stop = new AbortController()
        const sending = send(said('Long', { say: 'a b c d', duration_ms: 3_000 }), stop.signal)
        if (whileItStarts) stop.abort()
        const reading = read(await sending)
        stop.abort()
        await overTime(world, reading)
        const [job] = (await overTime(world, api.jobs.list().page())).data
        const done = await endOf(world, String(job?.id))
        assert.equal(done, cancelOnStop ? 'cancelled' : 'completed')
      }
    })

    test('a chat that unmounts during an answer resumes it when it mounts again', async () => {
      const { send, reconnect, world } = await startChat()
      const unmount = new AbortController()
      const stream = await send(said('Long', { say: 'one two three', duration_ms: 3_000 }), unmount.signal)
      await overTime(world, read(stream, 3))
      unmount.abort()
      const resumed = await reconnect()
      assert.ok(resumed)
      assert.equal(put(await overTime(world, read(resumed))).text, 'one two three')
    })

    test('the next turn cancels the job that a stop left running, and continues its conversation', async () => {
      const { send, turn, world, api } = await startChat()
      const stop = new AbortController()
      await send(said('Long', { say: 'a b c d', duration_ms: 60_000 }), stop.signal)
      stop.abort()
      const next = await turn(said('Something else', { say: 'Here it is' }))
      assert.equal(next.text, 'Here it is')
      const { data } = await api.jobs.get(next.id)
      assert.equal((await world.stored(String(data?.continues))).status, 'cancelled')
    })

    test('cancel ends the job of the chat, also while it starts, and a chat without a job is no error', async () => {
      const { send, cancel, world, api } = await startChat()
      await cancel()
      const starting = send(said('Long', { say: 'a b c d', duration_ms: 60_000 }))
      const cancelling = cancel()
      const shown = await overTime(world, read(await starting))
      await cancelling
      assert.ok(shown.some(({ type }) => type === 'abort'))
      const [job] = (await overTime(world, api.jobs.list().page())).data
      assert.equal(job?.status, 'cancelled')
      await cancel()
    })

    test('regenerating does not answer the open question: it cancels the job and starts a new one on its thread', async () => {
      const { turn, regenerate, world } = await startChat()
      const asked = await turn(said('Publish', { pause: 'Really?', say: 'Done' }))
      const again = await regenerate()
      assert.equal(again.data[0]?.type, 'data-question')
      assert.equal((await world.stored(asked.id)).status, 'cancelled')
      assert.equal((await world.stored(again.id)).continues, asked.id)
    })

    test('an answer that is given twice cancels nothing: both show the job that the first one resumed', async () => {
      for (const inSecondTab of [false, true]) {
        const { turn, send, copy, jobs, world } = await startChat()
        const asked = await turn(said('Publish', { pause: 'Really?', say: 'Done', duration_ms: 5_000 }))
        const second = inSecondTab ? copy() : { send }
        const streams = [await send(said('Yes')), await second.send(said('Yes'))]
        const shown = (await overTime(world, Promise.all(streams.map((stream) => read(stream))))).map(put)
        assert.deepEqual(
          shown.map(({ text, id }) => [text, id]),
          Array(2).fill(['Done', `${asked.id}.2`]),
        )
        assert.deepEqual(
          (await jobs()).map(({ status }) => status),
          ['completed'],
        )
      }
    })

    test('an answer from a tab that missed the end of the job shows that end', async () => {
      const { turn, copy, jobs } = await startChat()
      await turn(said('Publish', { pause: 'Really?', say: 'Done' }))
      const stale = copy()
      await turn(said('Yes'))
      assert.equal((await stale.turn(said('Yes'))).text, 'Done')
      assert.equal((await jobs()).length, 1)
    })

    test('a late answer does not answer the next question, which its user has not seen, but shows it', async () => {
      const { turn, copy, world } = await startChat({ type: 'asking' })
      const asked = await turn(said('Go'))
      const stale = copy()
      const next = await turn(said('first answer'))
      const late = await stale.turn(said('late answer'))
      assert.deepEqual(late.data, next.data)
      assert.notDeepEqual(late.data, asked.data)
      assert.equal((await world.stored(asked.id)).status, 'awaiting_input')
      assert.match((await stale.turn(said('second answer'))).text, /second answer/)
    })

    test('the next message after a stop is a new turn, even if the question is still the last message shown', async () => {
      for (const isCancelled of [false, true]) {
        const { turn, send, cancel, world } = await startChat()
        const asked = await turn(said('Publish', { pause: 'Really?', say: 'Done', duration_ms: 20_000 }))
        const stop = new AbortController()
        await send(said('Yes'), stop.signal)
        if (isCancelled) await cancel()
        else stop.abort()
        const next = await turn(said('Something else', { say: 'Here it is' }))
        assert.equal(next.text, 'Here it is')
        assert.equal((await world.stored(asked.id)).status, 'cancelled')
      }
    })

    test('a message with an answer shows the output of the answered job, and any other message waits for it', async () => {
      for (const isAnswer of [true, false]) {
        const { turn, send, messages, world } = await startChat()
        const asked = await turn(said('Publish', { pause: 'Really?', say: 'Done', duration_ms: 5_000 }))
        await send(said('Yes', { answer: null }))
        messages.push({ id: `${asked.id}.2`, role: 'assistant', parts: [], metadata: { jobId: asked.id, run: 2 } })
        const next = await turn(said('Yes', isAnswer ? { answer: null } : { say: 'A new turn' }))
        assert.equal(next.text, isAnswer ? 'Done' : 'A new turn')
        assert.equal((await world.stored(asked.id)).status, 'completed')
      }
    })

    test('a breakpoint is a question without a value, and any message continues it', async () => {
      const { turn } = await startChat({ type: 'stopping' })
      const stopped = await turn(said('Go'))
      assert.deepEqual(stopped.data, [
        { type: 'data-question', id: 'question-0', data: { jobId: stopped.id, interruptId: null, value: null } },
      ])
      const done = await turn(said('Go on'))
      assert.deepEqual([done.errors, done.data], [[], []])
      assert.equal(done.id, `${stopped.id}.2`)
    })

    test('one message answers several open questions: each by its id, or all with the same answer, also with null', async () => {
      for (const byId of [true, false]) {
        const { turn } = await startChat({ type: 'both' })
        const asked = await turn(said('Go'))
        const ids = asked.data.map(({ data }) => (data as { interruptId: string }).interruptId)
        assert.equal(ids.length, 2)
        const answers = Object.fromEntries(ids.map((id, place) => [id, place === 0 ? 'first' : null]))
        const done = await turn(said('fine', byId ? { answers } : {}))
        const given = (JSON.parse(done.text) as { answers: unknown[] }).answers
        assert.deepEqual(given, byId ? ['first', null] : ['fine', 'fine'])
      }
    })

    test('if bodies do not stream, the answer to a question is still a separate message', async () => {
      const { turn } = await startChat({ streaming: false })
      const asked = await turn(said('Publish', { pause: 'Really?', say: 'Done' }))
      const answered = await turn(said('yes'))
      assert.deepEqual([answered.text, answered.id], ['Done', `${asked.id}.2`])
    })

    test('an answer that failed is not shown again after a reload', async () => {
      const { send, reload, reconnect, world } = await startChat()
      const stream = await send(said('Fail', { fail: 'no luck' }))
      const readToError = async () => {
        for await (const { type } of stream) if (type === 'error') return
      }
      await overTime(world, readToError())
      reload()
      assert.equal(await reconnect(), null)
    })

    test('the AI SDK itself assembles the chunks', async () => {
      const { send, world } = await startChat()
      const tool = { name: 'search', args: { q: 'weather' }, result: 'sunny' }
      const stream = await send(said('How is it?', { say: 'It is sunny', think: 'Let me see', tool }))
      let message: UIMessage | undefined
      const reading = (async () => {
        for await (const state of readUIMessageStream({ stream, terminateOnError: true })) message = state
      })()
      await overTime(world, reading)
      const shown = message?.parts.map((part) =>
        'text' in part ? part.text : 'output' in part ? part.output : part.type,
      )
      assert.deepEqual(new Set(shown), new Set(['step-start', 'Let me see', 'sunny', 'It is sunny']))
      assert.deepEqual(Object.keys(message?.metadata ?? {}), ['jobId', 'threadId', 'run', 'status'])
    })

    test('the chat of the AI SDK itself loads a chat, joins its turn, and shows an answer that was cancelled elsewhere', async () => {
      const { turn, send, load, world } = await startChat()
      await turn(said('Hello', { say: 'Welcome' }))
      await send(said('Count', { say: 'one two three', duration_ms: 60_000 }))
      const messages = await load()
      const id = String(messages[0]?.metadata?.threadId)
      const api = createClient({ url: world.service.url, token: () => world.token('ada'), clock: world.clock })
      const transport = createChatTransport({ api, type: 'agent', toInput })
      const chat = new PlainChat({ id, messages, transport })
      const resumed = chat.resumeStream()
      await world.sweepUntil(() => chat.messages.at(-1)?.role === 'assistant', 500)
      assert.equal(chat.status, 'streaming')
      await overTime(world, createChatTransport({ api, type: 'agent' }).cancel(id))
      await overTime(world, resumed)
      assert.deepEqual([chat.status, chat.error], ['ready', undefined])
      assert.deepEqual(
        chat.messages.map(({ role, metadata }) => [role, metadata?.status]),
        [
          ['user', undefined],
          ['assistant', 'completed'],
          ['user', undefined],
          ['assistant', 'cancelled'],
        ],
      )
      await overTime(world, chat.sendMessage({ text: 'Again' }))
      assert.match(textOfMessage(chat.messages.at(-1) as ChatMessage), /Again/)
    })

    /** An open chat of the AI SDK in another tab, which watches the conversation. */
    async function openIdleTab({ world, load }: Pick<Awaited<ReturnType<typeof startChat>>, 'world' | 'load'>) {
      const messages = await load()
      const id = String(messages[0]?.metadata?.threadId)
      const api = createClient({ url: world.service.url, token: () => world.token('ada'), clock: world.clock })
      const transport = createChatTransport({ api, type: 'agent', toInput })
      const chat = new PlainChat({ id, messages: await overTime(world, transport.load(id)), transport })
      const stop = transport.watch(id, (update) => {
        chat.messages = update(chat.messages)
        void chat.resumeStream()
      })
      const shown = () =>
        chat.messages.map((message) => [message.role, textOfMessage(message), message.metadata?.status])
      const until = (holds: () => boolean) => world.sweepUntil(holds, 500)
      return { chat, shown, until, stop }
    }

    test('an open tab notices a turn that begins elsewhere, joins it and the turn behind it, without a reload', async () => {
      const { turn, send, show, copy, load, world } = await startChat()
      await turn(said('Hello', { say: 'Welcome' }))
      const { chat, shown, until, stop } = await openIdleTab({ world, load })
      const second = copy()
      const stream = await send(said('Count', { say: 'one two three', duration_ms: 4_000 }))
      await until(() => chat.status === 'streaming')
      const other = second.turn(said('Something else', { say: 'Here it is' }))
      await show(stream)
      await other
      await until(() => chat.status === 'ready' && shown().length === 6)
      assert.deepEqual(shown(), [
        ['user', 'Hello', undefined],
        ['assistant', 'Welcome', 'completed'],
        ['user', 'Count', undefined],
        ['assistant', 'one two three', 'completed'],
        ['user', 'Something else', undefined],
        ['assistant', 'Here it is', 'completed'],
      ])
      // Its own turns keep what was shown live.
      await overTime(world, chat.sendMessage({ text: 'Mine', metadata: { think: 'Hm', say: 'Yours' } as object }))
      await turn(said('Last', { say: 'Done' }))
      await until(() => chat.status === 'ready' && shown().length === 10)
      assert.ok(chat.messages[7]?.parts.some(({ type }) => type === 'reasoning'))
      assert.deepEqual(
        shown()
          .slice(6, 10)
          .map(([, text]) => text),
        ['Mine', 'Yours', 'Last', 'Done'],
      )
      stop()
    })

    test('an open tab shows a question that is asked and answered elsewhere, and the run that follows', async () => {
      const { turn, load, world } = await startChat()
      await turn(said('Hello', { say: 'Welcome' }))
      const { chat, shown, until, stop } = await openIdleTab({ world, load })
      await turn(said('Publish', { pause: 'Really?', say: 'Published' }))
      await until(() => chat.status === 'ready' && shown().at(-1)?.[2] === 'awaiting_input')
      assert.ok(chat.messages.at(-1)?.parts.some(({ type }) => type === 'data-question'))
      await turn(said('yes'))
      await until(() => chat.status === 'ready' && shown().at(-1)?.[1] === 'Published')
      assert.deepEqual(
        shown().map(([role, text]) => [role, text]),
        [
          ['user', 'Hello'],
          ['assistant', 'Welcome'],
          ['user', 'Publish'],
          ['assistant', ''],
          ['user', 'yes'],
          ['assistant', 'Published'],
        ],
      )
      stop()
    })

    async function endOf(world: JobWorld, id: string): Promise<string> {
      let status = ''
      await world.sweepUntil(async () => {
        status = (await world.stored(id)).status
        return status === 'completed' || status === 'cancelled'
      })
      return status
    }
  })
})

describe('the chunks of live output', () => {
  const piece = (fields: Partial<LiveMessage>): LivePart => ({
    type: 'message',
    cursor: '1-1',
    message: { id: 'm1', role: 'assistant', node: 'answer', partial: true, ...fields },
  })
  const chunksOf = (parts: LivePart[], output?: string) => {
    const writer = new ChunkWriter()
    const chunks = parts.flatMap((part) => [...writer.write(part)])
    if (output !== undefined) chunks.push(...writer.complete(output))
    return put([...chunks, ...writer.end()])
  }

  test('a whole message after its pieces adds only the missing text', () => {
    assert.equal(chunksOf([piece({ text: 'Hel' }), piece({ partial: false, text: 'Hello' })]).text, 'Hello')
  })

  test('a whole message that differs replaces the shown text', () => {
    assert.equal(chunksOf([piece({ text: 'Help' }), piece({ partial: false, text: 'Hello' })]).text, 'Hello')
  })

  test('a reset clears the shown output', () => {
    assert.equal(
      chunksOf([piece({ text: 'old' }), { type: 'reset', cursor: '1-2' }, piece({ text: 'new' })]).text,
      'new',
    )
  })

  test('the stored output is the truth: a missing end is added, and a different text is replaced', () => {
    assert.equal(chunksOf([piece({ text: 'Hello wor' })], 'Hello world').text, 'Hello world')
    assert.equal(chunksOf([piece({ text: 'Hello' })], 'Goodbye').text, 'Goodbye')
    assert.equal(chunksOf([], 'Only stored').text, 'Only stored')
  })

  test('a piece is written without comparing all of the text before it, which would make long answers slow', (t) => {
    const compare = t.mock.method(String.prototype, 'startsWith')
    const call = (args: string) => piece({ tool_calls: [{ index: 0, id: 'c', name: 'write', args }] })
    const parts = Array.from({ length: 5 }, () => [piece({ reasoning: 'hm ' }), piece({ text: 'word ' }), call('1')])
    const writer = new ChunkWriter()
    const chunks = parts.flat().flatMap((part) => [...writer.write(part)])
    assert.equal(compare.mock.callCount(), 0)
    const { text, reasoning, tools } = put([...chunks, ...writer.end()])
    assert.deepEqual([text, reasoning, tools.c?.input], ['word '.repeat(5), 'hm '.repeat(5), 11111])
  })

  test('the output of a tool whose call was not shown is left out', () => {
    assert.deepEqual(chunksOf([piece({ role: 'tool', partial: false, text: '1', tool_call_id: 'x' })]).tools, {})
  })

  test('text, reasoning and more text of one message are three separate parts', () => {
    const shown = chunksOf([piece({ text: 'a' }), piece({ reasoning: 'b' }), piece({ text: 'c' })])
    assert.deepEqual([shown.text, shown.reasoning], ['ac', 'b'])
  })

  test('a stored output does not remove shown reasoning and tool calls', () => {
    const shown = chunksOf(
      [
        piece({ reasoning: 'hm' }),
        piece({ tool_calls: [{ index: 0, id: 'c', name: 'find', args: '{}' }] }),
        piece({ text: 'Help' }),
      ],
      'Hello',
    )
    assert.deepEqual([shown.text, shown.reasoning, Object.keys(shown.tools)], ['Hello', 'hm', ['c']])
  })

  test('the tool calls of one of two concurrent nodes stay open when the other node ends', () => {
    const call = (args: string) => [{ index: 0, id: 'c1', name: 'find', args }]
    const shown = chunksOf([
      piece({ id: 'a', node: 'slow', tool_calls: call('{"q":') }),
      piece({ id: 'b', node: 'fast', text: 'quick' }),
      { type: 'step', cursor: '1-2', node: 'fast' },
      piece({ id: 'c', node: 'third', text: ' and more' }),
      piece({ id: 'a', node: 'slow', tool_calls: [{ index: 0, args: '"all of it"}' }] }),
      piece({ id: 't', role: 'tool', node: 'slow', partial: false, text: 'found', tool_call_id: 'c1' }),
    ])
    assert.deepEqual(shown.tools, { c1: { name: 'find', input: { q: 'all of it' }, output: 'found' } })
    assert.equal(shown.text, 'quick and more')
  })

  test('parts of sub-agents say which node wrote them, and a step closes only the messages of its own place', () => {
    const writer = new ChunkWriter()
    const parts: LivePart[] = [
      piece({ id: 'a', namespace: ['one:t1'], text: 'from one' }),
      piece({ id: 'b', namespace: ['two:t2'], text: 'from two' }),
      { type: 'step', cursor: '1-2', node: 'answer', namespace: ['one:t1'] },
      piece({ id: 'c', text: 'from the graph' }),
    ]
    const chunks = parts.flatMap((part) => [...writer.write(part)])
    const origins = chunks.flatMap((chunk) =>
      chunk.type === 'text-start' ? [chunk.providerMetadata?.project_api] : [],
    )
    assert.deepEqual(origins, [
      { node: 'answer', namespace: ['one:t1'] },
      { node: 'answer', namespace: ['two:t2'] },
      { node: 'answer', namespace: [] },
    ])
    assert.deepEqual(
      chunks.flatMap((chunk) => (chunk.type === 'text-end' ? [chunk.id] : [])),
      ['1'],
    )
  })

  test('two messages written at the same time stay two parts', () => {
    const writer = new ChunkWriter()
    const parts = ['a1', 'b1', 'a2', 'b2'].map((text) => piece({ id: text.slice(0, 1), text }))
    const starts = parts.flatMap((part) => [...writer.write(part)]).filter(({ type }) => type === 'text-start')
    assert.equal(starts.length, 2)
  })

  test('tool calls that do not begin in the order of their numbers leave no gaps', () => {
    const begin = (index: number) => piece({ tool_calls: [{ index, id: `c${index}`, name: 'find', args: '{}' }] })
    const { messages } = [begin(2), begin(0)].reduce(addLivePart, EMPTY_TRANSCRIPT)
    assert.deepEqual(
      messages[0]?.toolCalls.map((call) => call?.id),
      ['c0', 'c2'],
    )
  })
})
