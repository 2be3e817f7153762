#!/usr/bin/env node
// Plain statements first: an old Node must get as far as the message.
if (Number(process.versions.node.split('.')[0]) < 24) {
  process.stderr.write(
    `project-api needs Node 24 or newer, not ${process.version}. A clone has one: node_modules/.bin/node bin/project-api.js\n`,
  )
  process.exit(78)
}
const { enableCompileCache } = await import('node:module')
const { fileURLToPath } = await import('node:url')

// A start with the cache takes about half the time. The cache lies beside the installed code, so that only an account that
// may change this code can put compiled code there. Where the service may not write, it starts without a cache.
enableCompileCache(fileURLToPath(new URL('../node_modules/.cache/project-api', import.meta.url)))
await import('../src/main.ts')
