import { registerHooks } from 'node:module'
import type { WorkerTask } from '../worker-process.ts'
import { MUTANTS } from './planted-bugs.ts'

const ROOT = new URL('../../../', import.meta.url).href
const { mutant: name } = JSON.parse(process.argv[2] ?? '{}') as WorkerTask
const mutant = MUTANTS.find((one) => one.name === name)
if (!mutant) throw new Error(`There is no mutant ${name}`)

/** Changes the source on its way into this process, and nowhere else: the files stay as they are. */
registerHooks({
  load: (url, context, nextLoad) => {
    const loaded = nextLoad(url, context)
    const edits = mutant.edits.filter(({ file }) => url === ROOT + file)
    if (edits.length === 0) return loaded
    const source = edits.reduce((text, { find, put }) => text.replace(find, () => put), String(loaded.source))
    return { ...loaded, source }
  },
})
