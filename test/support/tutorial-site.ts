import { execFileSync } from 'node:child_process'
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { repositoryPath, writeCodeOf } from './doc-code.ts'
import { runProgram } from './program.ts'
import { type ScriptedServer, startScriptedServer } from './scripted-server.ts'

export const TUTORIAL = 'docs/tutorial.md'
const BUNDLER = createRequire(import.meta.url).resolve('esbuild-wasm/bin/esbuild')
const TYPES = { html: 'text/html', ts: 'text/javascript' }

export interface TutorialSite {
  url: string
  /** The folder as the reader of the tutorial has it. */
  folder: string
}

export interface SiteOptions {
  /** The service, as the page reaches it. */
  api: string
  /** The identity provider. Null: the site answers its token path itself, with `mint`. */
  tokens: string | null
  mint?: () => string
}

/** The pages of the tutorial with the addresses put in, served as the tutorial's dev server does. */
export async function startTutorialSite(
  options: (url: string) => SiteOptions | Promise<SiteOptions>,
): Promise<TutorialSite> {
  let folder = ''
  let mint = () => ''
  const server: ScriptedServer = await startScriptedServer((response, { path }) => {
    if (path === '/local_pool/oauth2/token') {
      response.setHeader('content-type', 'application/json').end(JSON.stringify({ access_token: mint() }))
      return
    }
    const file = new URL(path, 'http://site').pathname.replace(/^\/$/, '/index.html')
    const [, ending] = /^\/[a-z]+\.(html|ts)$/.exec(file) ?? []
    if (ending === undefined) return void response.writeHead(404).end()
    const place = ending === 'ts' ? join(folder, 'built', file.replace('.ts', '.js')) : join(folder, file)
    response.setHeader('content-type', TYPES[ending as keyof typeof TYPES]).end(readFileSync(place))
  })
  const { api, tokens, ...more } = await options(server.url)
  mint = more.mint ?? mint
  folder = await writeTutorial({ api, tokens: tokens ?? server.url })
  bundle(folder)
  return { url: server.url, folder }
}

/** Does what the tutorial asks its reader to do. */
async function writeTutorial({ api, tokens }: { api: string; tokens: string }): Promise<string> {
  const folder = writeCodeOf(TUTORIAL, (code) =>
    code.replace('http://127.0.0.1:8080', api).replace('http://127.0.0.1:8082', tokens),
  )
  copyFileSync(repositoryPath('job-types.json'), join(folder, 'job-types.json'))
  const { code, output, errors } = await runProgram(['types', '--file', 'job-types.json'], { folder })
  if (code !== 0) throw new Error(errors)
  writeFileSync(join(folder, 'job-types.d.ts'), output)
  return folder
}

/** Where the built client is, below the folder of the tutorial. */
export const BUILT_CLIENT = 'built-client/index'

/** Builds the client as `npm run build -w client` does, but aside, and bundles the pages with it. */
function bundle(folder: string): void {
  const compiler = repositoryPath('node_modules/typescript/bin/tsc')
  const build = [compiler, '-p', repositoryPath('client'), '--outDir', join(folder, 'built-client')]
  execFileSync(process.execPath, build, { timeout: 120_000 })
  const client = join(folder, `${BUILT_CLIENT}.js`)
  const args = ['report.ts', 'chat.ts', '--bundle', '--format=esm', '--outdir=built', '--log-level=error']
  // The program, because the library never exits.
  execFileSync(process.execPath, [BUNDLER, ...args, `--alias:@project-api/client=${client}`], {
    cwd: folder,
    timeout: 120_000,
  })
}
