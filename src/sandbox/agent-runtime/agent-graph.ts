import { isJsonObject, type Json, type JsonObject } from '../../core/json.ts'
import type { NewId } from './ids.ts'
import type { Step, StepResult } from './records.ts'

/**
 * The steps of the sandbox's agent. `input.sandbox` chooses what it streams: `say` (its answer), `think` (its reasoning),
 * and `tool` (`{name, args, result}`: it calls a tool first).
 */
export function agentSteps({ say, think, tool }: JsonObject): Step[] {
  const answer: Step = {
    name: 'answer',
    take: (values, _answers, newId) => ({
      update: { messages: [...messagesIn(values), answerTo(values, { say, newId })] },
      ...(typeof think === 'string' ? { reasoning: think } : {}),
    }),
  }
  if (!isJsonObject(tool)) return [answer]
  return [
    { name: 'decide', take: (values, _answers, newId) => callTool(values, { tool, newId }) },
    { name: 'tools', take: (values, _answers, newId) => runTool(values, { tool, newId }) },
    answer,
  ]
}

export function messagesIn({ messages }: JsonObject): JsonObject[] {
  return Array.isArray(messages) ? messages.filter(isJsonObject) : []
}

export function textOf(value: Json | undefined): string {
  if (value === undefined || value === null) return 'nothing'
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function answerTo(values: JsonObject, { say, newId }: { say: Json | undefined; newId: NewId }): JsonObject {
  const asked = messagesIn(values).findLast((message) => message.type === 'human')?.content ?? values.prompt
  const content = typeof say === 'string' ? say : `You said: ${textOf(asked)}`
  const [input_tokens, output_tokens] = [countWords(textOf(asked)), countWords(content)]
  return {
    content,
    usage_metadata: { input_tokens, output_tokens, total_tokens: input_tokens + output_tokens },
    tool_calls: [],
    invalid_tool_calls: [],
    additional_kwargs: {},
    response_metadata: {},
    id: newId(),
    type: 'ai',
  }
}

function callTool(values: JsonObject, { tool, newId }: { tool: JsonObject; newId: NewId }): StepResult {
  const call = { name: textOf(tool.name), args: tool.args ?? {}, id: `call_${newId()}`, type: 'tool_call' }
  const message = { ...messageFields(newId), content: '', tool_calls: [call], invalid_tool_calls: [], type: 'ai' }
  return { update: { messages: [...messagesIn(values), message] } }
}

function runTool(values: JsonObject, { tool, newId }: { tool: JsonObject; newId: NewId }): StepResult {
  const messages = messagesIn(values)
  const { tool_calls } = messages.at(-1) ?? {}
  const [call] = Array.isArray(tool_calls) ? tool_calls.filter(isJsonObject) : []
  const message = {
    ...messageFields(newId),
    content: textOf(tool.result),
    name: textOf(tool.name),
    tool_call_id: call?.id ?? '',
    type: 'tool',
  }
  return { update: { messages: [...messages, message] } }
}

function messageFields(newId: NewId): JsonObject {
  return { additional_kwargs: {}, response_metadata: {}, id: newId() }
}

function countWords(text: string): number {
  return text.split(/\s+/).length
}
