import packageFile from '../package.json' with { type: 'json' }

/** The one place the version is written is package.json. */
export const VERSION: string = packageFile.version
