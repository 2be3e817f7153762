import { cpSync, existsSync, globSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Plugin, rolldown } from 'rolldown'
import { thirdPartyLicences } from './licences.ts'

const ROOT = fileURLToPath(new URL('../', import.meta.url))
const DIST = join(ROOT, 'dist')

/** The code is one folder below the root, as `src/shipped-files.ts` is, which finds the root by that. */
const CODE = 'bundle'
/** Every export of the service, for the tests of the build. It only names what is in the other files, and is not packed. */
const INTERNALS = `${CODE}/internals`

/** Files that the code looks up, and those that people read. They keep their paths. */
const SHIPPED = [
  'job-types.json',
  'console/dist/**/*',
  'src/db/migrations/*.sql',
  'src/db/sqlite/checkpoint-thread.js',
  'src/sandbox/**/*.html',
  'docs/**/*.md',
  'docs/images/*',
  'docs/*.json',
  '*.md',
  'LICENSE',
]

/**
 * Bundles the service with its packages into `dist/`, which is the package that is published and the content of the image.
 * The console is built before. What the service loads on demand stays in files of its own.
 */
async function main(): Promise<void> {
  if (!existsSync(join(ROOT, 'console/dist/index.html'))) throw new Error('Build the console first: npm run build')
  rmSync(DIST, { recursive: true, force: true })
  const modules = await bundleCode()
  for (const file of globSync(SHIPPED, { cwd: ROOT, exclude: ['docs/site/**'] })) {
    cpSync(join(ROOT, file), join(DIST, file), { recursive: true })
  }
  writeFileSync(join(DIST, 'THIRD-PARTY-LICENCES.txt'), thirdPartyLicences([...modules, ...consolePackages()]))
  writeFileSync(join(DIST, 'package.json'), `${JSON.stringify(packageFile(), null, 2)}\n`)
}

/** Returns the paths of all bundled modules. */
async function bundleCode(): Promise<string[]> {
  const build = await rolldown({
    cwd: ROOT,
    platform: 'node',
    input: { 'bin/project-api': 'bin/project-api.js', [INTERNALS]: INTERNALS },
    plugins: [allExports()],
    // A bindings package for PostgreSQL that the driver only loads when an application asks for it.
    external: ['pg-native'],
  })
  try {
    const { output } = await build.write({
      dir: DIST,
      format: 'esm',
      sourcemap: true,
      // Names stay, so that stack traces can be read. Without comments and spaces the idle process takes 2 to 4 MB less.
      minify: { compress: false, mangle: false, codegen: { removeWhitespace: true } },
      keepNames: true,
      entryFileNames: '[name].js',
      chunkFileNames: `${CODE}/[name].js`,
    })
    return output.flatMap((file) => (file.type === 'chunk' ? file.moduleIds : []))
  } finally {
    await build.close()
  }
}

/** The module that exports what every file of the service exports. No two files export one name: a test checks it. */
function allExports(): Plugin {
  return {
    name: 'all-exports',
    resolveId: (id) => (id === INTERNALS ? id : null),
    load: (id) => {
      if (id !== INTERNALS) return null
      const files = globSync('src/**/*.ts', { cwd: ROOT }).filter((file) => file !== join('src', 'main.ts'))
      return files.map((file) => `export * from ${JSON.stringify(join(ROOT, file))}`).join('\n')
    },
  }
}

/** The folders of the packages in the built console: what it is built with, but its builder and our client, and what these need. */
function consolePackages(): string[] {
  const { devDependencies } = JSON.parse(readFileSync(join(ROOT, 'console/package.json'), 'utf8')) as {
    devDependencies: Record<string, string>
  }
  const names = Object.keys(devDependencies).filter((name) => name !== 'vite' && !name.startsWith('@project-api/'))
  const folders = new Set<string>()
  for (const name of names) addWithDependencies(name, { from: join(ROOT, 'console'), folders })
  return [...folders]
}

/** Adds the folder of a package and those of all packages that it depends on, as Node finds them from `from`. */
function addWithDependencies(name: string, { from, folders }: { from: string; folders: Set<string> }): void {
  const paths = createRequire(join(from, 'package.json')).resolve.paths(name) ?? []
  const folder = paths.map((path) => join(path, name)).find((path) => existsSync(join(path, 'package.json')))
  if (folder === undefined) throw new Error(`${from} needs the package ${name}, which is not installed`)
  if (folders.has(folder)) return
  folders.add(folder)
  const { dependencies = {} } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as {
    dependencies?: Record<string, string>
  }
  for (const next of Object.keys(dependencies)) addWithDependencies(next, { from: folder, folders })
}

/** The package needs no other package, and no Node but the one that runs it. */
function packageFile(): object {
  const own = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as Record<string, unknown>
  const { name, version, description, license, repository, engines, type, bin } = own
  const files = ['bin', CODE, `!${INTERNALS}.js*`, 'src', 'console', 'docs', 'job-types.json', '*.md', '*.txt']
  return { name, version, description, license, repository, engines, type, bin, files }
}

await main()
