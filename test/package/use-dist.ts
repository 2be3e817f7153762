import { registerHooks } from 'node:module'

const SOURCE = new URL('../../src/', import.meta.url).href
const BUILD = new URL('../../dist/bundle/internals.js', import.meta.url).href

/**
 * Loaded before the tests, it gives them the build in place of the sources: `dist/bundle/internals.js` exports all that
 * the files of `src/` export, from the files that are shipped. Programs that a test starts are those of the build too.
 */
registerHooks({
  resolve: (specifier, context, nextResolve) => {
    const resolved = nextResolve(specifier, context)
    const isSource = resolved.url.startsWith(SOURCE) && resolved.url.endsWith('.ts')
    return isSource ? { url: BUILD, format: 'module', shortCircuit: true } : resolved
  },
})
process.env.TEST_DIST = 'true'
