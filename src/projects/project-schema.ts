import { type Static, Type } from 'typebox'
import { pageOf, pageQuery } from '../http/paging.ts'
import {
  boundedText,
  idempotencyHeader,
  ifMatchHeader,
  ifNoneMatchHeader,
  jsonDocument,
  nullableString,
  nullableText,
  pathParams,
  timestamp,
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
const description = nullableText({ maxLength: 2000 })
const metadata = jsonDocument({
  type: 'object',
  additionalProperties: true,
  description: 'Your own data, up to 16 KB of JSON.',
})

export const Project = Type.Object(
  {
    id: Type.String(),
    name: Type.String(),
    description: nullableString,
    metadata,
    created_by: Type.String({ description: 'The `sub` of the user, or the id of the service account.' }),
    created_at: timestamp,
    updated_at: timestamp,
  },
  { title: 'Project', examples: [example] },
)
export type Project = Static<typeof Project>

export const ProjectInput = Type.Object(
  { name, description: Type.Optional(description), metadata: Type.Optional(metadata) },
  {
    title: 'ProjectInput',
    additionalProperties: false,
    examples: [{ name: 'Quarterly report', description: 'Numbers for the board' }],
  },
)
export type ProjectInput = Static<typeof ProjectInput>

export const ProjectChange = Type.Object(
  { name: Type.Optional(name), description: Type.Optional(description), metadata: Type.Optional(metadata) },
  { title: 'ProjectChange', additionalProperties: false, minProperties: 1, examples: [{ name: 'Annual report' }] },
)
export type ProjectChange = Static<typeof ProjectChange>

const tags = ['Projects']
const params = pathParams('id')

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
      description: 'The version named by `If-None-Match` is the present one.',
    }),
  },
}

export const changeProject = {
  operationId: 'changeProject',
  tags,
  summary: 'Change a project',
  description: 'Omitted fields keep their value. With `If-Match`, a project that has changed since answers 412.',
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
