import { execFileSync, spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { parseArgs } from 'node:util'

/** The TypeScript projects, each with the folders whose files it compiles. */
const PROJECTS = [
  { config: 'tsconfig.json', folders: ['src/', 'test/', 'verify/', 'client/', 'bundle/'] },
  { config: 'client/tsconfig.json', folders: ['client/'] },
  { config: 'console/tsconfig.json', folders: ['console/', 'client/'] },
]

/** A change of one of these concerns every file. */
const SETTINGS = ['package.json', 'package-lock.json', 'tsconfig.json', 'biome.json']

/** The arguments of a node process. */
type Command = readonly string[]

const TSC = 'node_modules/typescript/bin/tsc'
const BIOME = ['node_modules/@biomejs/biome/bin/biome', 'check', '--error-on-warnings']
const LAYOUT = [
  '--test',
  '--test-reporter=dot',
  ...['import-directions', 'table-ownership', 'source-layout'].map((name) => `test/unit/${name}.test.ts`),
]

/**
 * `npm run check` checks types, lint, format and layout of everything. With `--changed [REV]` it checks the types of the
 * projects with a changed file, the lint and format of the changed files, and the layout. Changed are the files that
 * differ from `REV` (default: HEAD) and the untracked ones.
 */
async function main(args: readonly string[]): Promise<number> {
  const { values, positionals } = parseArgs({
    args: [...args],
    options: { changed: { type: 'boolean', default: false } },
    allowPositionals: true,
  })
  const changed = values.changed ? changedFiles(positionals[0] ?? 'HEAD') : SETTINGS
  const isFull = changed.some((file) => SETTINGS.includes(file))
  const codes = await Promise.all((isFull ? allChecks() : checksOf(changed)).map(run))
  return codes.some((code) => code !== 0) ? 1 : 0
}

function allChecks(): Command[] {
  return [...PROJECTS.map(({ config }) => [TSC, '-p', config, '--noEmit']), [...BIOME, '.'], LAYOUT]
}

/** The compiler keeps what it found in a file, and reads again only the changed files and those that import them. */
function checksOf(changed: readonly string[]): Command[] {
  if (changed.length === 0) return []
  const concerned = PROJECTS.filter(({ folders }) => changed.some((file) => folders.some((at) => file.startsWith(at))))
  const types = concerned.map(({ config }) => {
    const found = `node_modules/.cache/check/${config.replace('/', '-')}.tsbuildinfo`
    return [TSC, '-p', config, '--noEmit', '--incremental', '--tsBuildInfoFile', found]
  })
  const present = changed.filter((file) => existsSync(file))
  const lint = present.length > 0 ? [[...BIOME, '--no-errors-on-unmatched', ...present]] : []
  return [...types, ...lint, LAYOUT]
}

function changedFiles(revision: string): string[] {
  const git = (...args: string[]) => execFileSync('git', args, { encoding: 'utf8' }).split('\0').filter(Boolean)
  const differing = git('diff', '--name-only', '--no-renames', '-z', revision, '--')
  return [...differing, ...git('ls-files', '--others', '--exclude-standard', '-z')]
}

/** Prints what the command says when it ends, so that the outputs of several commands do not mix. */
function run(args: Command): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] })
    const output: Buffer[] = []
    child.stdout.on('data', (chunk: Buffer) => output.push(chunk))
    child.stderr.on('data', (chunk: Buffer) => output.push(chunk))
    child.once('error', reject)
    child.once('close', (code) => {
      process.stdout.write(Buffer.concat(output))
      resolve(code ?? 1)
    })
  })
}

process.exitCode = await main(process.argv.slice(2))
