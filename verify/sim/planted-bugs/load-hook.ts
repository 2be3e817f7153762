import { registerHooks } from 'node:module'
import type { WorkerTask } from '../worker-process.ts'
import { PLANTED_BUGS } from './planted-bugs.ts'

const ROOT = new URL('../../../', import.meta.url).href
const { plantedBug: name } = JSON.parse(process.argv[2] ?? '{}') as WorkerTask
const bug = PLANTED_BUGS.find((one) => one.name === name)
if (!bug) throw new Error(`There is no planted bug ${name}`)

/** Plants the bug in the source as this process loads it. The files on disk do not change. */
registerHooks({
  load: (url, context, nextLoad) => {
    const loaded = nextLoad(url, context)
    const edits = bug.edits.filter(({ file }) => url === ROOT + file)
    if (edits.length === 0) return loaded
    const source = edits.reduce((text, { find, put }) => text.replace(find, () => put), String(loaded.source))
    return { ...loaded, source }
  },
})
