import { type Static, Type } from 'typebox'
import { eventSchema } from '../events/event-schema.ts'
import { EVENT_TYPES } from '../events/event-store.ts'
import { pageOf, pageQuery } from '../http/paging.ts'
import {
  boundedText,
  idempotencyHeader,
  ifMatchHeader,
  ifNoneMatchHeader,
  jsonDocument,
  nullableText,
  nullableTextField,
  pathParams,
  timeField,
} from '../http/schemas.ts'

const example = {
  id: 'prj_01kq3v7m2x8n4r6t0w9y5z1abc',
  name: 'Quarterly report',
  description: 'Numbers for the board',
  metadata: { team: 'finance' },
  created_by: '8f14e45f-ceea-467f-a0e6-000000000001',
  created_at: '2026-01-31T12:00:00.000Z',
  updated_at: '2026-01-31T12:00:00.000Z',
}

const name = boundedText({ minLength: 1, maxLength: 200, description: 'The name shown to people.' })
const description = nullableText({ maxLength: 2000, description: 'What the project is about.' })
const metadata = jsonDocument({
  type: 'object',
  additionalProperties: true,
  description: 'Your own data, up to 16 KB of JSON.',
})

export const Project = Type.Object(
  {
    id: Type.String({ description: 'Begins with `prj_`.' }),
    name: Type.String({ description: 'The name shown to people.' }),
    description: nullableTextField('What the project is about.'),
    metadata,
    created_by: nullableTextField(
      'The `sub` of the user, or the id of the service account; null once the user was erased.',
    ),
    created_at: timeField('When it was created.'),
    updated_at: timeField('When it was last changed.'),
  },
  { title: 'Project', examples: [example] },
)
export type Project = Static<typeof Project>

export const ProjectEvent = eventSchema({
  title: 'ProjectEvent',
  types: EVENT_TYPES.filter((type) => type.startsWith('project.')),
  description: 'A project that you created has changed.',
  data: Type.Object(
    {
      project_id: Type.String({ description: 'The project.' }),
      name: Type.String({ description: 'Its name after the change.' }),
    },
    { title: 'ProjectEventData', description: 'Which project.' },
  ),
})

const ProjectInput = Type.Object(
  { name, description: Type.Optional(description), metadata: Type.Optional(metadata) },
  {
    title: 'ProjectInput',
    additionalProperties: false,
    examples: [{ name: 'Quarterly report', description: 'Numbers for the board' }],
  },
)

const ProjectChange = Type.Object(
  { name: Type.Optional(name), description: Type.Optional(description), metadata: Type.Optional(metadata) },
  { title: 'ProjectChange', additionalProperties: false, minProperties: 1, examples: [{ name: 'Annual report' }] },
)

const tags = ['Projects']
const params = pathParams('id', 'The project’s id.')

export const listProjects = {
  operationId: 'listProjects',
  tags,
  summary: 'List projects, newest first',
  querystring: Type.Object(pageQuery, { additionalProperties: false }),
  response: { 200: pageOf(Project) },
}

export const createProject = {
  operationId: 'createProject',
  tags,
  summary: 'Create a project',
  headers: idempotencyHeader,
  body: ProjectInput,
  response: { 201: Project },
}

export const getProject = {
  operationId: 'getProject',
  tags,
  summary: 'Get a project',
  headers: ifNoneMatchHeader,
  params,
  response: {
    200: Project,
    304: Type.Unsafe<undefined>({
      type: 'null',
      description: 'The project still has the version named by `If-None-Match`.',
    }),
  },
}

export const changeProject = {
  operationId: 'changeProject',
  tags,
  summary: 'Change a project',
  description: 'Omitted fields keep their value. With `If-Match`, the answer is 412 if the project has changed since.',
  headers: ifMatchHeader,
  params,
  body: ProjectChange,
  response: { 200: Project },
}

export const deleteProject = {
  operationId: 'deleteProject',
  tags,
  summary: 'Delete a project',
  headers: ifMatchHeader,
  params,
  response: { 204: Type.Null({ description: 'The project is deleted.' }) },
}
