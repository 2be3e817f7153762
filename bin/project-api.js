#!/usr/bin/env node
import { enableCompileCache } from 'node:module'
import { fileURLToPath } from 'node:url'

// A start with the cache takes about half the time. The cache lies beside the installed code, so that only an account that
// may change this code can put compiled code there. Where the service may not write, it starts without a cache.
enableCompileCache(fileURLToPath(new URL('../node_modules/.cache/project-api', import.meta.url)))
await import('../src/main.ts')
