#!/usr/bin/env node
import { enableCompileCache } from 'node:module'

// Plain JavaScript: a start whose code is in the cache then never loads what strips the types.
enableCompileCache()
await import('../src/main.ts')
