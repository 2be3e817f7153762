import { execFileSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const HERE = fileURLToPath(new URL('.', import.meta.url))
const TIMEOUT_MS = 10 * 60_000

const HELP = `npm run docs                builds the documentation site into docs/site/dist
npm run docs -- preview     serves that build at http://localhost:4173
npm run docs -- dev         serves the pages at http://localhost:5173 while you write

Further arguments go to VitePress, such as --port 8000. The first run installs its packages into docs/site.
`

/** `npm run docs`: builds the site. An argument replaces `build`. */
const [command = 'build', ...options] = process.argv.slice(2)
if (['--help', '-h', 'help'].includes(command) || options.includes('--help')) {
  process.stdout.write(HELP)
  process.exit()
}
const vitepress = join(HERE, 'node_modules/vitepress/bin/vitepress.js')
if (!existsSync(vitepress)) {
  const install = ['ci', '--no-audit', '--no-fund', '--ignore-scripts']
  execFileSync('npm', install, { cwd: HERE, stdio: 'inherit', timeout: TIMEOUT_MS })
}
execFileSync(process.execPath, [vitepress, command, HERE, ...options], { stdio: 'inherit' })
