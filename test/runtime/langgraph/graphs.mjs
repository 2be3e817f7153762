import { setTimeout as pause } from 'node:timers/promises'
import { AIMessage, AIMessageChunk } from '@langchain/core/messages'
import { FakeStreamingChatModel } from '@langchain/core/utils/testing'
import { Annotation, END, interrupt, MessagesAnnotation, START, StateGraph } from '@langchain/langgraph'

const State = Annotation.Root({
  prompt: Annotation(),
  title: Annotation(),
  n: Annotation(),
  ms: Annotation(),
  draft: Annotation(),
  report: Annotation(),
  result: Annotation(),
})

/** One graph for each way a run can end. A graph is a chain of steps, named so that `next` and `tasks` are readable. */
export const ok = sequence({ write: writeReport })
export const report = ok
export const summary = sequence({
  summarise: ({ prompt }) => ({ result: { summary: `In short: ${prompt ?? 'nothing'}` } }),
})
export const sleep = sequence({
  wait: async ({ ms }, { signal }) => {
    await pause(ms ?? 1_000, undefined, { signal })
    return {}
  },
  write: writeReport,
})
export const pause_ = sequence({
  ask: () => ({ draft: interrupt({ question: 'Publish it?' }) }),
  write: ({ title, draft }) => ({ report: { title: title ?? 'Untitled', answer: draft } }),
})
/** Writes its output key before it asks. */
export const late_key = sequence({
  write: writeReport,
  ask: () => ({ draft: interrupt({ question: 'Publish it?' }) }),
})
/** Two questions in one step: the second pause writes no new checkpoint. */
export const ask_twice = sequence({
  ask: () => {
    const first = interrupt({ question: 'Publish it?' })
    const second = interrupt({ question: 'Are you sure?' })
    return { report: { title: 'Asked twice', answers: [first, second] } }
  },
})
/** Two parallel nodes, each with a question. */
export const ask_both = new StateGraph(
  Annotation.Root({
    answers: Annotation({ reducer: (a, b) => [...a, ...b], default: () => [] }),
    report: Annotation(),
  }),
)
  .addNode('ask_1', () => ({ answers: [interrupt({ question: 'Publish it?' })] }))
  .addNode('ask_2', () => ({ answers: [interrupt({ question: 'Under which name?' })] }))
  .addNode('write', ({ answers }) => ({ report: { title: 'Asked both', answers } }))
  .addEdge(START, 'ask_1')
  .addEdge(START, 'ask_2')
  .addEdge(['ask_1', 'ask_2'], 'write')
  .addEdge('write', END)
  .compile()
/** Answer with what they know of their caller, the second one after a question. */
export const whoami = sequence({ answer: tellCaller })
export const whoami_asked = sequence({
  ask: () => ({ draft: interrupt({ question: 'Publish it?' }) }),
  answer: tellCaller,
})
/** Stops at a breakpoint before its last step, without a question. */
export const breakpoint = sequence({ begin: () => ({ draft: 'half a report' }), write: writeReport }, ['write'])
/** Fails in the step that was answered, so it writes no new checkpoint either. */
export const ask_throw = sequence({
  ask: () => {
    interrupt({ question: 'Publish it?' })
    throw new Error('kaboom: after the answer')
  },
})
const throws = sequence({
  begin: () => ({ draft: 'half a report' }),
  fail: () => {
    throw new Error('kaboom: upstream 500')
  },
})

export { pause_ as pause, throws as throw }

/** A conversation without a model: repeats the last message. */
export const agent = new StateGraph(Annotation.Root({ ...MessagesAnnotation.spec, prompt: Annotation() }))
  .addNode('answer', ({ messages, prompt }) => {
    const said = messages.findLast((message) => message.getType() === 'human')?.content ?? prompt ?? 'nothing'
    const usage_metadata = { input_tokens: 12, output_tokens: 7, total_tokens: 19 }
    return { messages: [new AIMessage({ content: `You said: ${said}`, usage_metadata })] }
  })
  .addEdge(START, 'answer')
  .addEdge('answer', END)
  .compile()

/** Writes to its custom stream, and answers piece by piece like a model. `prompt` is the pause before each piece. */
export const talk = new StateGraph(Annotation.Root({ ...MessagesAnnotation.spec, prompt: Annotation() }))
  .addNode('work', (_state, { writer }) => {
    writer?.({ percent: 10 })
    writer?.('half')
    return {}
  })
  .addNode('answer', async ({ messages, prompt }) => {
    const contents = ['One ', 'two ', [{ type: 'thinking', thinking: 'Hm.' }], 'three ', 'four']
    const chunks = contents.map((content) => new AIMessageChunk({ content }))
    const model = new FakeStreamingChatModel({ chunks, sleep: prompt ?? 50 })
    return { messages: [await model.invoke(messages)] }
  })
  .addNode('close', () => ({ messages: [new AIMessage({ content: 'That was all.' })] }))
  .addEdge(START, 'work')
  .addEdge('work', 'answer')
  .addEdge('answer', 'close')
  .addEdge('close', END)
  .compile()

/** A graph with a sub-agent: the graph `talk` is one of its nodes. */
export const team = new StateGraph(Annotation.Root({ ...MessagesAnnotation.spec, prompt: Annotation() }))
  .addNode('researcher', talk)
  .addNode('boss', () => ({ messages: [new AIMessage({ content: 'Well done.' })] }))
  .addEdge(START, 'researcher')
  .addEdge('researcher', 'boss')
  .addEdge('boss', END)
  .compile()

function writeReport({ title, n }) {
  return { report: { title: title ?? 'Untitled', n: n ?? 0 } }
}

function tellCaller(_state, { configurable: { caller = null, user_id = null, language = null } }) {
  return { report: { caller, user_id, language } }
}

function sequence(steps, interruptBefore = []) {
  const graph = new StateGraph(State)
  let previous = START
  for (const [name, step] of Object.entries(steps)) {
    graph.addNode(name, step).addEdge(previous, name)
    previous = name
  }
  return graph.addEdge(previous, END).compile({ interruptBefore })
}
