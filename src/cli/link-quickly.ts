import { registerHooks } from 'node:module'

/**
 * Loads a module without asking the disk about each line that imports a file of ours: it is where the line says.
 * Node would look for the file, its real path and the package.json above it, some five hundred times: a tenth of the
 * start. Modules are linked within the call; the packages they load when they run are found as ever.
 */
export function linkQuickly<T>(load: () => Promise<T>): Promise<T> {
  const hooks = registerHooks({
    resolve: (specifier, context, next) =>
      specifier.startsWith('.') && specifier.endsWith('.ts')
        ? { url: new URL(specifier, context.parentURL).href, format: 'module-typescript', shortCircuit: true }
        : next(specifier, context),
  })
  try {
    return load()
  } finally {
    hooks.deregister()
  }
}
