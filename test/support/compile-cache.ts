import { fileURLToPath } from 'node:url'

/** The program's own compile cache. Without it, most of a start is compilation. */
export const COMPILE_CACHE = fileURLToPath(new URL('../../node_modules/.cache/project-api', import.meta.url))
