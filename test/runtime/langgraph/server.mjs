import { fileURLToPath } from 'node:url'

/**
 * The real server with the graphs of `graphs.mjs`: `node server.mjs <state folder> [port]`. Prints `{"port":…}` when ready.
 * SIGKILL loses unwritten state, as a crash does. SIGTERM writes it.
 */
process.env.LOG_LEVEL ??= 'error'
// Imported here, because the module reads its log level on import.
const { startServer } = await import('@langchain/langgraph-api/server')

const [folder, port = '0'] = process.argv.slice(2)
if (folder === undefined) throw new Error('The state folder is missing: node server.mjs <state folder> [port]')
const file = fileURLToPath(new URL('./graphs.mjs', import.meta.url))
const names = [
  'ok',
  'report',
  'summary',
  'agent',
  'talk',
  'team',
  'throw',
  'pause',
  'ask_twice',
  'ask_throw',
  'sleep',
  'late_key',
  'ask_both',
  'breakpoint',
  'whoami',
  'whoami_asked',
]
const { host, cleanup } = await startServer({
  host: '127.0.0.1',
  port: Number(port),
  nWorkers: 10,
  cwd: folder,
  graphs: Object.fromEntries(names.map((name) => [name, `${file}:${name}`])),
})
process.stdout.write(`${JSON.stringify({ port: Number(host.split(':').at(-1)) })}\n`)
// The server's loops never end by themselves.
process.once('SIGTERM', () => void cleanup().finally(() => process.exit(0)))
