import { type Static, Type } from 'typebox'
import { onePage, pageOf, pageQuery } from '../../http/paging.ts'
import { jsonDocument, nullableTextField, nullableTimeField, pathParams, timeField } from '../../http/schemas.ts'
import { Interrupt, JOB_EXAMPLES, jobStatus } from './job-schema.ts'
import { fieldsQuery, JobItem } from './list-operations.ts'

const tags = ['Jobs']
const params = pathParams('thread_id', 'The `thread_id` of its jobs.')

const conversation = {
  thread_id: Type.String({ description: 'The runtime’s id of the conversation. Its jobs have the same.' }),
  type: Type.String({ description: 'The job type of its first turn.' }),
  title: nullableTextField('The first words of its first turn; null if its input has none.'),
}

const EXAMPLE = { thread_id: JOB_EXAMPLES.started.thread_id, type: 'agent', title: 'How are the sales?' }

const ConversationItem = Type.Object(
  {
    ...conversation,
    last_job: Type.String({ description: 'The id of the job of its newest turn.' }),
    status: jobStatus,
    updated_at: timeField('When that job last changed.'),
  },
  {
    title: 'ConversationItem',
    description: 'A conversation. Its status is that of its newest turn.',
    examples: [
      { ...EXAMPLE, last_job: JOB_EXAMPLES.started.id, status: 'completed', updated_at: '2026-01-31T12:00:09.000Z' },
    ],
  },
)

export const listConversations = {
  operationId: 'listConversations',
  tags,
  summary: 'List your conversations',
  description:
    'The threads of your jobs; the conversation with the newest turn comes first. The unfinished turns of a page are brought ' +
    'up to date with the runtime, within one second for all of them.',
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(ConversationItem) },
}

const Pause = Type.Object(
  {
    run: Type.Integer({ description: 'Which run of the job asked: 1 for the first one.' }),
    questions: jsonDocument({
      type: ['array', 'null'],
      items: Interrupt,
      description: 'What the graph asked; empty for a breakpoint. Null: left out, because the pauses exceed 2 MB.',
    }),
    answers: jsonDocument({
      type: ['object', 'null'],
      additionalProperties: true,
      description:
        'The answers by the ids of the questions; the key is empty for a question without an id. Null: none was given here.',
    }),
    answered_at: nullableTimeField('When they were given.'),
  },
  { title: 'Pause', description: 'Questions of a turn that are closed, with their answers.' },
)
export type Pause = Static<typeof Pause>

const TURN_EXAMPLE = {
  ...JOB_EXAMPLES.completed,
  run: 2,
  pauses: [
    {
      run: 1,
      questions: [{ id: 'b7c1', value: 'Publish it?' }],
      answers: { b7c1: true },
      answered_at: '2026-01-31T12:00:05.000Z',
    },
  ],
}

const Turn = Type.Object(
  {
    ...JobItem.properties,
    run: Type.Integer({ description: 'Which run of the job is the current one: 1, and one more with each answer.' }),
    pauses: Type.Array(Pause, {
      description: 'The questions that are closed, oldest first. Open ones are in `interrupts`. Empty in a summary.',
    }),
  },
  {
    title: 'Turn',
    description: 'A job of a conversation, with its earlier questions.',
    examples: [TURN_EXAMPLE],
  },
)

export const getConversation = {
  operationId: 'getConversation',
  tags,
  summary: 'Get a conversation with its turns, newest first',
  description:
    'The turns with input, output, questions and answers. Unfinished turns are among them, and brought up to date with the ' +
    'runtime, within one second for all of them; `GET /jobs/{id}/live` shows the one that runs. If the start of the first ' +
    'turn had to be repeated, the conversation has another `thread_id`; the old one leads to it. With `read:operations` or ' +
    '`admin:*`: the turns of every owner. A page ends early when its turns exceed 2 MB.',
  params,
  querystring: Type.Object({ ...pageQuery, fields: fieldsQuery }, { additionalProperties: false }),
  response: {
    200: Type.Object(
      { ...conversation, ...pageOf(Turn).properties },
      { title: 'Conversation', examples: [{ ...EXAMPLE, ...onePage([TURN_EXAMPLE]) }] },
    ),
  },
}

export const removeConversation = {
  operationId: 'deleteConversation',
  tags,
  summary: 'Delete a conversation',
  description:
    'Deletes all jobs on the thread, with everything they hold, and the thread at the runtime if this service created it. ' +
    '409 while a job on it is unfinished. 503 if the runtime cannot delete its thread now: then nothing is deleted.',
  params,
  response: { 204: Type.Null({ description: 'Deleted' }) },
}
