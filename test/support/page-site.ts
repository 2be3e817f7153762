import { execFileSync } from 'node:child_process'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { type ScriptedServer, startScriptedServer } from './scripted-server.ts'

const BUNDLER = createRequire(import.meta.url).resolve('esbuild-wasm/bin/esbuild')

/** The script of a page with all its imports. */
export function bundlePage(file: URL): string {
  const args = [fileURLToPath(file), '--bundle', '--format=esm', '--define:process.env.NODE_ENV="development"']
  return execFileSync(process.execPath, [BUNDLER, ...args], { timeout: 120_000, maxBuffer: 64e6 }).toString()
}

/** Serves a page that only runs this script. */
export function servePage(script: string): Promise<ScriptedServer> {
  const html = '<!doctype html><meta charset="utf-8"><body><script type="module" src="/page.js"></script>'
  return startScriptedServer((response, { path }) => {
    const { pathname } = new URL(path, 'http://site')
    const isScript = pathname === '/page.js'
    response.writeHead(200, { 'content-type': isScript ? 'text/javascript' : 'text/html' })
    response.end(isScript ? script : pathname === '/' ? html : '')
  })
}
