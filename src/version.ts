import packageFile from '../package.json' with { type: 'json' }

/** The version is defined only in package.json. */
export const VERSION: string = packageFile.version
