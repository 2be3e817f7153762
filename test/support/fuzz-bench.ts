import assert from 'node:assert/strict'
import fc from 'fast-check'
import { STATUS_BY_CODE } from '../../src/core/errors.ts'
import { checkDeclaredHeaders } from './declared-headers.ts'
import { FuzzClient } from './fuzz-client.ts'
import { type FuzzRequest, type PathPart, percentEncode, requestsOf, targetsBeside } from './fuzz-request.ts'
import { fuzzSettings } from './fuzz-settings.ts'
import type { TestResponse } from './http-client.ts'
import { type JobWorld, RUN_MS, TEST_JOB_TYPES, WEBHOOK_SECRET } from './job-world.ts'
import {
  closedSchema,
  type NamedOperation,
  type OpenapiDocument,
  operationsOf,
  resolve,
  type Validators,
  validatorsOf,
} from './openapi-document.ts'

export interface FuzzOptions {
  cases: number
  /** Whether a 503 is a correct answer. */
  mayBeUnavailable: boolean
}

/** Ids that exist, by what stands before them in a path. */
type KnownIds = ReadonlyMap<string, string[]>

/** A service with records of every kind, whose answers are checked against its own OpenAPI document. */
export class FuzzBench {
  readonly operations: readonly NamedOperation[]
  readonly #world: JobWorld
  readonly #client: FuzzClient
  readonly #validators: Validators
  readonly #known: KnownIds
  readonly #key: string

  private constructor(parts: { world: JobWorld; document: OpenapiDocument; known: KnownIds; key: string }) {
    this.#world = parts.world
    this.#client = new FuzzClient(parts.world.service.url)
    this.#validators = sharedValidators(parts.document)
    this.#known = parts.known
    this.#key = parts.key
    this.operations = operationsOf(parts.document).map((named) =>
      withHints(withBody(named, parts.document), parts.known),
    )
  }

  static async open(world: JobWorld): Promise<FuzzBench> {
    const { body: document } = await world.service.request<OpenapiDocument>('GET', '/openapi.json')
    return new FuzzBench({ world, document, ...(await seedWorld(world)) })
  }

  async fuzz(named: NamedOperation, { cases, mayBeUnavailable }: FuzzOptions): Promise<void> {
    const property = fc.asyncProperty(requestsOf(named), async (request) => {
      const answer = await this.#send(named, request)
      if (answer.status >= 500 && !(mayBeUnavailable && answer.status === 503)) {
        assert.fail(`${answer.status} ${answer.text}`)
      }
      checkHeaders(answer)
      this.#checkDeclared(named, answer)
      checkDeclaredHeaders(named, answer)
      this.#remember(named, answer)
    })
    await fc.assert(property, { seed: fuzzSettings().seed, numRuns: cases })
  }

  /** Unknown paths and near misses of known ones, with every method. */
  async fuzzPaths(cases: number): Promise<void> {
    const refused = this.#validators.compile({ $ref: '#/components/schemas/ErrorResponse' })
    const targets = targetsBeside(this.operations.map(({ path }) => path.replaceAll(/\{\w+\}/g, 'x')))
    const property = fc.asyncProperty(targets, fc.boolean(), async ({ method, target }, isAdmin) => {
      const headers = isAdmin ? [['authorization', `Bearer ${this.#world.admin}`] as const] : []
      const answer = await this.#client.request({ method, target, headers, body: null })
      checkHeaders(answer)
      if (answer.status >= 500) assert.fail(`${answer.status} ${answer.text}`)
      if (answer.status < 400 || method === 'HEAD') return
      if (!refused(answer.body)) assert.fail(`${answer.text} is no envelope`)
      checkCode(answer)
    })
    await fc.assert(property, { seed: fuzzSettings().seed, numRuns: cases })
  }

  close(): void {
    this.#client.close()
  }

  #send({ path, method }: NamedOperation, request: FuzzRequest): Promise<TestResponse> {
    const { caller, params, query, headers, body } = request
    const pool = this.#known.get(path.slice(0, path.indexOf('/{'))) ?? []
    const filled = path.replaceAll(/\{(\w+)\}/g, (_whole, name: string) => write(params[name] ?? { text: 'x' }, pool))
    return this.#client.request({
      method,
      target: query === '' ? filled : `${filled}?${query}`,
      headers: [
        ...this.#credentials(caller, path),
        ...(body?.contentType === undefined ? [] : [['content-type', body.contentType] as const]),
        ...headers,
      ],
      body: body?.text ?? null,
    })
  }

  #credentials(caller: FuzzRequest['caller'], path: string): [string, string][] {
    if (caller === 'anonymous') return []
    if (caller === 'junk') {
      return ['authorization', 'x-webhook-secret'].map((name) => [name, 'Bearer \u00ff.e30.x'])
    }
    if (path.startsWith('/webhooks/')) return [['x-webhook-secret', WEBHOOK_SECRET]]
    const key: [string, string] = ['x-api-key', this.#key]
    const user: [string, string] = ['authorization', `Bearer ${this.#world.token('a-user')}`]
    const admin: [string, string] = ['authorization', `Bearer ${this.#world.admin}`]
    return { admin: [admin], user: [user], key: [key], both: [user, key] }[caller]
  }

  #checkDeclared(named: NamedOperation, answer: TestResponse): void {
    const described = named.operation.responses[answer.status]
    if (!described) throw new Error(`${nameOf(named)} does not declare ${answer.status} ${answer.text}`)
    const [content] = Object.entries(described.content ?? {})
    assert.equal(answer.headers['content-type']?.split(';', 1)[0], content?.[0], answer.text)
    if (!content) {
      assert.equal(answer.text, '')
      return
    }
    const validate = this.#validators.compile(content[1].schema, closedSchema)
    // The schema of a stream is that of each event.
    for (const value of content[0] === 'text/event-stream' ? eventsIn(answer.text) : [answer.body]) {
      if (!validate(value)) assert.fail(`${answer.text} is not as declared: ${JSON.stringify(validate.errors)}`)
    }
    if (answer.status < 400) return
    const codes = Object.values(content[1].examples ?? {}).map(({ value }) => codeOf(value))
    assert.ok(codes.includes(checkCode(answer)), `${nameOf(named)} does not declare ${answer.text}`)
  }

  /** Remembers a new record, so that later requests use its id. */
  #remember({ path }: NamedOperation, { headers }: TestResponse): void {
    const { location } = headers
    if (location !== undefined) this.#known.get(path)?.push(location.slice(path.length + 1))
  }
}

/** The data of the events that arrived as a whole. */
function eventsIn(text: string): unknown[] {
  return Array.from(text.matchAll(/^data: (.*)\n\n/gm), ([, data = '']) => JSON.parse(data))
}

export function nameOf({ method, path }: NamedOperation): string {
  return `${method} ${path}`
}

async function seedWorld(world: JobWorld): Promise<{ known: KnownIds; key: string }> {
  const { service } = world
  const create = async (path: string, body: object) => {
    const answer = await service.request<{ id: string; key: string }>('POST', path, { token: world.admin, body })
    assert.equal(answer.status, 201, answer.text)
    return answer.body
  }
  const project = await create('/v1/projects', { name: 'seed' })
  const device = await create('/v1/devices', { token: 'a registration token', platform: 'web' })
  const note = await create('/v1/notifications', { title: 'seed', body: '', devices: [device.id] })
  const { key } = await create('/v1/service-accounts', { name: 'seed', scopes: ['admin:*'] })
  const account = await create('/v1/service-accounts', { name: 'other', scopes: [] })
  const run = (n: number) => ({
    thread_id: `00000000-0000-4000-8000-00000000000${n}`,
    run_id: `00000000-0000-4000-9000-00000000000${n}`,
    status: 'success',
    values: { report: n },
  })
  const adopted = await Promise.all([1, 2, 3].map((n) => world.callback('report', run(n))))
  const callbacks = await service.request<{ data: { id: string }[] }>('GET', '/v1/callbacks', { token: world.admin })
  const jobs = adopted.map(({ body }) => body.job_id)
  if (service.services.config.runtime !== null) {
    const start = async (type: string) => jobs.push((await world.start(type, { sub: 'root' })).id)
    for (const type of ['report', 'pausing', 'throwing']) await start(type)
    await world.pass(RUN_MS)
    for (const type of ['report', 'keyless']) await start(type)
  }
  const known = new Map([
    ['/v1/projects', [project.id]],
    ['/v1/devices', [device.id]],
    ['/v1/notifications', [note.id]],
    ['/v1/service-accounts', [account.id]],
    ['/v1/callbacks', callbacks.body.data.map(({ id }) => id)],
    ['/v1/users', ['root', 'a-user', 'me']],
    ['/webhooks/jobs', [...TEST_JOB_TYPES.keys()]],
    ['/jobs', jobs],
  ])
  return { known, key }
}

function write(part: PathPart, pool: readonly string[]): string {
  if ('bytes' in part) return part.bytes
  return percentEncode('text' in part ? part.text : (pool[part.known % pool.length] ?? 'none'))
}

/** With its body's schema in place of the reference to it, as a copy to write hints into. */
function withBody(named: NamedOperation, document: OpenapiDocument): NamedOperation {
  const { requestBody } = named.operation
  const media = requestBody?.content['application/json']
  if (!requestBody || !media) return named
  const content = { 'application/json': { ...media, schema: structuredClone(resolve(document, media.schema)) } }
  return { ...named, operation: { ...named.operation, requestBody: { ...requestBody, content } } }
}

/** Adds known values to fields whose schema only says "text". */
function withHints(named: NamedOperation, known: KnownIds): NamedOperation {
  const hints: Record<string, readonly unknown[]> = {
    type: [...TEST_JOB_TYPES.keys()],
    project_id: [...(known.get('/v1/projects') ?? []), null],
  }
  const properties = named.operation.requestBody?.content['application/json']?.schema.properties ?? {}
  for (const [name, values] of Object.entries(hints)) {
    if (properties[name]) properties[name] = { ...properties[name], enum: [...values] }
  }
  return named
}

/** Shared by all services with the same document. */
function sharedValidators(document: OpenapiDocument): Validators {
  const text = JSON.stringify(document)
  const shared = validators.get(text) ?? validatorsOf(document)
  validators.set(text, shared)
  return shared
}

const validators = new Map<string, Validators>()

function checkHeaders({ headers }: TestResponse): void {
  assert.match(String(headers['x-request-id']), /^[A-Za-z0-9._-]{1,128}$/)
  assert.equal(headers['x-content-type-options'], 'nosniff')
}

/** The status must follow from the code, and a 429 or 503 needs Retry-After. */
function checkCode({ status, headers, body, text }: TestResponse): string {
  const code = codeOf(body)
  assert.equal(STATUS_BY_CODE[code as keyof typeof STATUS_BY_CODE], status, text)
  if (status === 429 || status === 503) assert.match(String(headers['retry-after']), /^\d+$/)
  return code
}

function codeOf(body: unknown): string {
  const { detail, error } = body as { detail?: { code: string }; error?: { code: string } }
  return (detail ?? error)?.code ?? ''
}
