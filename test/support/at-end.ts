import { after } from 'node:test'

const work: (() => unknown)[] = []

/**
 * Runs the work after the last test of the process. Support modules use this instead of `after`: a module is loaded while
 * the first file that imports it is read, and `after` would run at the end of that file, although later files of the same
 * process use the module too.
 */
export function atEnd(end: () => unknown): void {
  work.push(end)
}

after(async () => {
  for (const end of work) await end()
})
