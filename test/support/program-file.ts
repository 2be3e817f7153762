import { fileURLToPath } from 'node:url'

/** Whether the tests are about the build in `dist/`: see test/package/use-dist.ts. */
export function isDist(): boolean {
  return Boolean(process.env.TEST_DIST)
}

/** The main file of the program: that of this checkout, or that of its build. */
export const PROGRAM = fileURLToPath(
  new URL(isDist() ? '../../dist/bin/project-api.js' : '../../src/main.ts', import.meta.url),
)
