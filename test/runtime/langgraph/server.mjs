import { fileURLToPath } from 'node:url'

/**
 * The real server over the graphs beside it: `node server.mjs <state folder> [port]`. It prints `{"port":…}` once up.
 * What it has not written out is lost on SIGKILL, as in a crash; SIGTERM writes it.
 */
process.env.LOG_LEVEL ??= 'error'
// Loaded only now: it reads its log level while it loads.
const { startServer } = await import('@langchain/langgraph-api/server')

const [folder, port = '0'] = process.argv.slice(2)
if (folder === undefined) throw new Error('The state folder is missing: node server.mjs <state folder> [port]')
const file = fileURLToPath(new URL('./graphs.mjs', import.meta.url))
const names = [
  'ok',
  'report',
  'summary',
  'agent',
  'throw',
  'pause',
  'ask_twice',
  'ask_throw',
  'sleep',
  'late_key',
  'ask_both',
  'breakpoint',
]
const { host, cleanup } = await startServer({
  host: '127.0.0.1',
  port: Number(port),
  nWorkers: 10,
  cwd: folder,
  graphs: Object.fromEntries(names.map((name) => [name, `${file}:${name}`])),
})
process.stdout.write(`${JSON.stringify({ port: Number(host.split(':').at(-1)) })}\n`)
// Its own loops never end.
process.once('SIGTERM', () => void cleanup().finally(() => process.exit(0)))
