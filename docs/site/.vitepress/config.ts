import { copyFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { emptyHeaders, pageLinks, pictures } from '../markdown.ts'
import { sidebarOf } from '../sidebar.ts'
import { slugOf } from '../slug.ts'

const ROOT = fileURLToPath(new URL('../../../', import.meta.url))
const DASHBOARD = 'docs/grafana-dashboard.json'

/** The pages are the files of the repository as they are. A link to a page that does not exist fails the build. */
export default defineConfig({
  title: 'Project API',
  description: 'The product backend for apps that run long agent jobs.',
  lang: 'en',
  // No icon, so that browsers do not ask for one.
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  srcDir: ROOT,
  srcExclude: ['{.ci,.github,bin,bundle,client,console,deploy,dist,examples,src,test,verify}/**', 'docs/site/**'],
  // A folder's README is its first page, as on a code host.
  rewrites: { 'README.md': 'index.md', 'docs/README.md': 'docs/index.md' },
  outDir: fileURLToPath(new URL('../dist', import.meta.url)),
  cacheDir: fileURLToPath(new URL('../node_modules/.vitepress', import.meta.url)),
  markdown: {
    anchor: { slugify: slugOf },
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    config: (md) => {
      pageLinks(md, ROOT)
      pictures(md)
      emptyHeaders(md)
    },
  },
  themeConfig: {
    sidebar: sidebarOf(ROOT),
    outline: [2, 3],
    search: { provider: 'local' },
  },
  buildEnd: ({ outDir }) => copyFileSync(`${ROOT}${DASHBOARD}`, `${outDir}/${DASHBOARD}`),
})
