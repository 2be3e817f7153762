import { defaultClientConditions, defineConfig } from 'vite'

/** The service serves the build at /console, under a policy without inline scripts and styles. */
export default defineConfig({
  base: '/console/',
  // The client from its sources: no build of it has to come first.
  resolve: { conditions: ['project-api-source', ...defaultClientConditions] },
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: { target: 'es2022', modulePreload: { polyfill: false }, assetsInlineLimit: 0, reportCompressedSize: false },
})
