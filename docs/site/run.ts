import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const HERE = fileURLToPath(new URL('.', import.meta.url))
const TIMEOUT_MS = 10 * 60_000

/** `npm run docs`: builds the site into `docs/site/dist`. Arguments replace `build`: `npm run docs -- dev` serves it while you write. */
const vitepress = join(HERE, 'node_modules/vitepress/bin/vitepress.js')
if (!existsSync(vitepress)) {
  const install = ['ci', '--no-audit', '--no-fund', '--ignore-scripts']
  execFileSync('npm', install, { cwd: HERE, stdio: 'inherit', timeout: TIMEOUT_MS })
}
const [command = 'build', ...options] = process.argv.slice(2)
execFileSync(process.execPath, [vitepress, command, HERE, ...options], { stdio: 'inherit' })
