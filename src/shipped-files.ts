/**
 * The root of a clone, or of a build. A build has its files at the same paths as the clone, and all its code in one folder
 * below the root, as this one: the same address leads to the root of both.
 */
const ROOT = new URL('../', import.meta.url)

/** The address of a file or folder that is shipped beside the code: `src/db/migrations/`, `job-types.json`. */
export function shippedFile(path: string): URL {
  return new URL(path, ROOT)
}
