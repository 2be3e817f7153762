import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { installPackages } from './install-packages.ts'
import { ServerProcess, startOnFreePort } from './server-process.ts'
import { until } from './until.ts'

const HOME = fileURLToPath(new URL('../runtime/langgraph/', import.meta.url))
const STATE_FILE = '.langgraph_api/.langgraphjs_ops.json'

/** The real agent runtime in a process of its own, with the graphs of test/runtime/langgraph. */
export async function startLangGraph(): Promise<LangGraph> {
  await installPackages(HOME)
  const server = new ServerProcess('langgraph')
  const port = await startOnFreePort((port) =>
    server.start({
      command: process.execPath,
      args: [join(HOME, 'server.mjs'), server.folder, String(port)],
      ready: /"port":\d+/,
      stopSignal: 'SIGTERM',
    }),
  )
  return new LangGraph(server, port)
}

export class LangGraph {
  /** The same after a restart. */
  readonly url: string
  readonly #server: ServerProcess

  constructor(server: ServerProcess, port: number) {
    this.#server = server
    this.url = `http://127.0.0.1:${port}`
  }

  /** Kills the runtime. Data that it had not saved yet is lost; it saves after three seconds without requests. */
  kill(): Promise<void> {
    return this.#server.kill()
  }

  /** Restarts with the saved data. */
  restart(): Promise<void> {
    return this.#server.restart()
  }

  stop(): Promise<void> {
    return this.#server.stop()
  }

  /** Every request delays the saving, so this reads the file instead of asking the server. */
  async untilWritten(runId: string, status: string): Promise<void> {
    await until(() => this.#writtenStatus(runId) === status)
  }

  #writtenStatus(runId: string): string | undefined {
    try {
      const written = JSON.parse(readFileSync(join(this.#server.folder, STATE_FILE), 'utf8')) as {
        json: { runs: Record<string, { status: string }> }
      }
      return written.json.runs[runId]?.status
    } catch {
      return undefined // Not there yet, or being written.
    }
  }
}
