import { execFile, execFileSync } from 'node:child_process'
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import type { Variant } from '../../src/config.ts'
import { describeApi } from './describe.ts'

const HERE = fileURLToPath(new URL('.', import.meta.url))
const JOB_TYPES = readFileSync(new URL('../../job-types.json', import.meta.url), 'utf8')
const TIMEOUT_MS = 120_000
const run = promisify(execFile)

/** The compiler options with which applications compile generated code. */
const COMPILER = {
  compilerOptions: {
    strict: true,
    noUncheckedIndexedAccess: true,
    noEmit: true,
    target: 'esnext',
    module: 'esnext',
    moduleResolution: 'bundler',
    lib: ['esnext', 'dom', 'dom.iterable'],
    types: [],
  },
  include: ['**/*.ts'],
}

/**
 * Checks the API description of both variants: two linters report no fault, and the code of three generators compiles. The
 * tools are installed from the lock file of this folder on first use.
 */
async function main(): Promise<void> {
  install()
  // The tools use one processor each.
  const failed = await Promise.all((['A', 'B'] as const).map(countFaults))
  process.exitCode = failed.every((count) => count === 0) ? 0 : 1
}

async function countFaults(variant: Variant): Promise<number> {
  const folder = await mkdtemp(join(tmpdir(), `openapi-${variant}-`))
  let failed = 0
  try {
    const document = join(folder, 'openapi.json')
    writeFileSync(document, await describeApi(variant, JOB_TYPES))
    for (const [name, program, args] of stepsOf(folder, document)) {
      const fault = await faultOf(program, args)
      process.stdout.write(`${fault === null ? 'ok    ' : 'FAILED'} variant ${variant}: ${name}\n${fault ?? ''}`)
      if (fault !== null) failed += 1
    }
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
  return failed
}

type Step = [name: string, program: string, args: string[]]

function stepsOf(folder: string, document: string): Step[] {
  const rules = join(folder, 'spectral.json')
  writeFileSync(rules, JSON.stringify({ extends: ['spectral:oas'] }))
  const orval = join(folder, 'orval.config.mjs')
  const output = { target: `${folder}/orval/api.ts`, schemas: `${folder}/orval/model`, client: 'fetch', mode: 'split' }
  writeFileSync(orval, `export default ${JSON.stringify({ api: { input: document, output } })}`)
  writeFileSync(join(folder, 'tsconfig.json'), JSON.stringify(COMPILER))
  return [
    ['Redocly, recommended-strict', 'redocly', ['lint', '--extends', 'recommended-strict', document]],
    ['Spectral', 'spectral', ['lint', document, '-r', rules, '--fail-severity', 'hint']],
    ['openapi-typescript', 'openapi-typescript', [document, '-o', join(folder, 'openapi-typescript.ts')]],
    ['orval', 'orval', ['--config', orval]],
    ['@hey-api/openapi-ts', 'openapi-ts', ['-i', document, '-o', join(folder, 'hey-api')]],
    ['the generated code compiles under strict', 'tsc', ['-p', folder]],
  ]
}

/** Null if the program succeeds; otherwise its output. */
async function faultOf(program: string, args: string[]): Promise<string | null> {
  try {
    await run(join(HERE, 'node_modules/.bin', program), args, { cwd: HERE, timeout: TIMEOUT_MS })
    return null
  } catch (error) {
    const { stdout = '', stderr = '', message } = error as Error & { stdout?: string; stderr?: string }
    return `${stdout}${stderr}` || `${message}\n`
  }
}

function install(): void {
  if (existsSync(join(HERE, 'node_modules'))) return
  process.stdout.write('# installing verify/openapi\n')
  const args = ['ci', '--ignore-scripts', '--no-audit', '--no-fund']
  execFileSync('npm', args, { cwd: HERE, stdio: ['ignore', 'ignore', 'inherit'] })
}

await main()
