import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, test } from 'node:test'
import { slugOf } from '../../docs/site/slug.ts'
import { SCOPES } from '../../src/auth/scopes.ts'
import { runCommandLine } from '../../src/cli/command-line.ts'
import { EVENT_TYPES } from '../../src/events/event-store.ts'
import { JOB_STATUSES } from '../../src/jobs/job.ts'
import {
  commandsOf,
  isForDev,
  type Page,
  proseOf,
  ROOT,
  readPages,
  type ShellBlock,
  shellBlocksOf,
} from '../support/doc-pages.ts'
import { readSources } from '../support/source-files.ts'

/** Shell blocks that no test runs, by page and beginning, with the reason. */
const EXAMPLES: [page: string, begins: string, reason: string][] = [
  ['README.md', 'npm ci', 'CI runs both commands'],
  ['README.md', 'npm install ./project-api', 'needs a packed release'],
  ['README.md', 'npm ci && npm run build', 'needs a user pool and a runtime'],
  ['docs/deploying.md', 'npm install ./project-api', 'needs a packed release; package.test.ts does the same'],
  ['docs/cognito.md', 'aws cognito-idp add-custom-attributes', 'needs an account of the provider'],
  ['docs/cognito.md', 'aws cognito-idp update-user-pool-client', 'needs an account of the provider'],
  ['docs/cognito.md', 'aws lambda add-permission', 'needs an account of the provider'],
  [
    'docs/authentication.md',
    'node_modules/.bin/node bin/project-api.js keys create',
    'command-line.test.ts runs the command',
  ],
  ['docs/operations.md', 'node_modules/.bin/node bin/project-api.js doctor', 'operations.test.ts runs the command'],
  [
    'docs/monitoring.md',
    'node_modules/.bin/node bin/project-api.js keys create',
    'command-line.test.ts runs the command',
  ],
  ['docs/operations.md', 'pg_dump', 'needs a database of its own'],
  ['docs/simulation.md', 'npm run sim', 'CI runs the simulation'],
  ['docs/reliability.md', 'npm run mutation', 'takes hours'],
  ['docs/reliability.md', 'npm run torture', 'takes minutes; torture.test.ts runs a short one'],
  ['docs/reliability.md', 'npm run overload', 'takes minutes'],
  ['docs/sandbox.md', 'eval "$(npx project-api dev-env)"', 'dev.test.ts runs it'],
  ['docs/scaling.md', 'export SECRETS_DIR', 'needs containers'],
  ['docs/tutorial.md', 'npm ci', 'CI runs the commands'],
  ['docs/tutorial.md', 'mkdir first-screen', 'tutorial.test.ts does the same'],
  ['docs/tutorial.md', 'npx vite first-screen', 'tutorial.test.ts does the same with its own server'],
]

/** A longer page has a hidden structure. */
const MAX_LINES = 400

const NPM_COMMANDS = ['ci', 'install', 'publish', 'version']

const pages = readPages()
const blocks = pages.flatMap(shellBlocksOf)

describe('the documentation', () => {
  test('every relative link leads to a file, and every anchor to a heading', () => {
    const broken = pages.flatMap((page) =>
      linksOf(page)
        .filter((link) => !leadsSomewhere(page, link))
        .map((link) => `${page.path}: ${link}`),
    )
    assert.deepEqual(broken, [])
  })

  test('docs/README.md lists every page', () => {
    const index = pages.find(({ path }) => path === 'docs/README.md')
    assert.ok(index)
    const listed = linksOf(index).map((link) => join('docs', link))
    const missing = pages.map(({ path }) => path).filter((path) => !listed.includes(path))
    assert.deepEqual(missing, ['client/README.md', 'docs/README.md'])
  })

  test('no page is longer than 400 lines', () => {
    const long = pages.filter(({ text }) => text.trimEnd().split('\n').length > MAX_LINES)
    assert.deepEqual(
      long.map(({ path }) => path),
      [],
    )
  })

  test('every source file that docs/ARCHITECTURE.md names exists', () => {
    const sources = Object.keys(readSources()).map((path) => `/${path}`)
    const page = pages.find(({ path }) => path === 'docs/ARCHITECTURE.md')
    const named = Array.from(page?.text.matchAll(/`([\w/-]+\.ts)`/g) ?? [], ([, file]) => file)
    assert.ok(named.length > 0)
    const missing = named.filter((file) => !sources.some((source) => source.endsWith(`/${file}`)))
    assert.deepEqual(missing, [])
  })

  test('every status, event and scope has its page', () => {
    const documented = {
      'docs/jobs.md': JOB_STATUSES,
      'docs/realtime-and-push.md': EVENT_TYPES,
      'docs/authentication.md': Object.keys(SCOPES),
    }
    const missing = Object.entries(documented).flatMap(([path, names]) => {
      const text = pages.find((page) => page.path === path)?.text ?? ''
      return names.filter((name) => !text.includes(`\`${name}\``)).map((name) => `${path}: ${name}`)
    })
    assert.deepEqual(missing, [])
  })

  test('every shell block is run by a test or listed as an example', () => {
    const unknown = blocks.filter((block) => !isForDev(block) && !isRunbook(block) && exampleOf(block) === undefined)
    assert.deepEqual(
      unknown.map(({ page, script }) => `${page}: ${script}`),
      [],
    )
    const unused = EXAMPLES.filter((example) => !blocks.some((block) => exampleOf(block) === example))
    assert.deepEqual(unused, [])
  })

  test('every command of this project that the documentation names exists, with its options', async () => {
    const inline = pages.flatMap((page) =>
      Array.from(proseOf(page).matchAll(/`(npm [^`]+|npx project-api [^`]+)`/g), ([, code = '']) => ({
        page: page.path,
        script: code,
      })),
    )
    const faults: string[] = []
    for (const { page, script } of [...blocks, ...inline, ...pages.flatMap(ownCommandsOf)]) {
      for (const command of commandsOf(script)) {
        const fault = await faultOf(command)
        if (fault !== null) faults.push(`${page}: ${command}: ${fault}`)
      }
    }
    assert.deepEqual(faults, [])
  })
})

/** Lines of any code block that call our own program, such as those that need a setting before the command. */
function ownCommandsOf({ path, text }: Page): ShellBlock[] {
  const lines = text.matchAll(/^.*(?:npx project-api|bin\/project-api\.js) [a-z].*$/gm)
  return Array.from(lines, ([line]) => line)
    .filter((line) => !line.includes('`'))
    .map((script) => ({ page: path, script }))
}

/** The blocks of runbooks need an outage. runbooks.test.ts compares what they name with the source. */
function isRunbook({ page }: ShellBlock): boolean {
  return page.startsWith('docs/runbooks/')
}

function exampleOf({ page, script }: ShellBlock) {
  const fitting = EXAMPLES.filter(([file, begins]) => file === page && script.startsWith(begins))
  // The longest beginning is the most exact one.
  return fitting.sort(([, a], [, b]) => b.length - a.length)[0]
}

function linksOf(page: Page): string[] {
  const links = proseOf(page)
    .replaceAll(/`[^`]*`/g, '')
    .matchAll(/\]\(([^)\s]+)\)/g)
  return Array.from(links, ([, link = '']) => link).filter((link) => !/^[a-z]+:/.test(link))
}

function leadsSomewhere(page: Page, link: string): boolean {
  const [path = '', anchor] = link.split('#')
  const file = path === '' ? page.path : join(dirname(page.path), path)
  if (!existsSync(join(ROOT, file))) return false
  return anchor === undefined || anchorsOf(readFileSync(join(ROOT, file), 'utf8')).has(anchor)
}

function anchorsOf(text: string): Set<string> {
  const anchors = new Set<string>()
  for (const [, heading = ''] of proseOf({ path: '', text }).matchAll(/^#+ (.+)$/gm)) {
    const slug = slugOf(heading.replace(/\[([^\]]+)\]\([^)]*\)/g, '$1'))
    let anchor = slug
    for (let n = 1; anchors.has(anchor); n++) anchor = `${slug}-${n}`
    anchors.add(anchor)
  }
  return anchors
}

async function faultOf(command: string): Promise<string | null> {
  const words = (command.match(/"[^"]*"|'[^']*'|\S+/g) ?? []).map((word) => word.replace(/^["']|["')]+$/g, ''))
  const program = words.findIndex((word) => /^(?:bin\/project-api\.js|project-api)$/.test(word))
  // To systemd the word is the name of the unit.
  const isUnit = words.some((word) => word === 'systemctl' || word === 'journalctl')
  if (program !== -1 && !isUnit) return faultOfProgram(words.slice(program + 1))
  if (words[0] !== 'npm') return null
  const [, verb, name] = words
  const script = verb === 'run' ? name : verb
  if (script === undefined || NPM_COMMANDS.includes(script)) return null
  const workspace = words.includes('-w') ? `${words[words.indexOf('-w') + 1]}/` : ''
  const { scripts } = JSON.parse(readFileSync(join(ROOT, workspace, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>
  }
  const runs = scripts[script]
  if (runs === undefined) return `there is no script ${script}`
  const options = words.includes('--') ? words.slice(words.indexOf('--') + 1) : []
  const [, ownCommand] = /project-api\.js (\S+)/.exec(runs) ?? []
  if (ownCommand) return faultOfProgram([ownCommand, ...options])
  const [source] = /\S+\.ts/.exec(runs) ?? []
  return source ? missingFrom(readFileSync(join(ROOT, workspace, source), 'utf8'), options) : null
}

/** Compares with the command's own `--help`. */
async function faultOfProgram([name = '', ...args]: string[]): Promise<string | null> {
  if (name.startsWith('<')) return null
  const said: string[] = []
  const say = (line: string) => void said.push(line)
  const line = {
    env: {},
    args: [name, '--help'],
    print: say,
    write: say,
    printError: say,
    readFile: () => '',
    stopping: new AbortController().signal,
    onReload: () => {},
  }
  if ((await runCommandLine(line)) !== 0) return `there is no command ${name}`
  const help = said.join('\n')
  const [verb] = args
  if (verb !== undefined && /^[a-z]+$/.test(verb) && !help.includes(`${name} ${verb}`)) return `${name} has no ${verb}`
  return missingFrom(help, args)
}

function missingFrom(text: string, args: readonly string[]): string | null {
  const options = args
    .filter((arg) => arg.startsWith('--') && arg !== '--')
    .map((arg) => arg.slice(2).split('=')[0] ?? '')
  const missing = options.filter((option) => !new RegExp(`--${option}\\b|\\b${option}: \\{`).test(text))
  return missing.length > 0 ? `there is no option ${missing.join(', ')}` : null
}
