import { execFile } from 'node:child_process'
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { ServerProcess, startOnFreePort } from './server-process.ts'
import { until } from './until.ts'

const HOME = fileURLToPath(new URL('../runtime/langgraph/', import.meta.url))
const STATE_FILE = '.langgraph_api/.langgraphjs_ops.json'
const INSTALL_TIMEOUT_MS = 5 * 60_000

/** The real agent runtime in a process of its own, with the graphs of test/runtime/langgraph. */
export async function startLangGraph(): Promise<LangGraph> {
  await installOnce()
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

/** Installs into a temporary folder and renames it, so that two test files may install at the same time. */
async function installOnce(): Promise<void> {
  const place = join(HOME, 'node_modules')
  if (existsSync(place)) return
  process.stderr.write('Installing the agent runtime for the tests (npm ci in test/runtime/langgraph)\n')
  mkdirSync(join(HOME, '.scratch'), { recursive: true })
  const aside = mkdtempSync(join(HOME, '.scratch', 'install-'))
  try {
    for (const file of ['package.json', 'package-lock.json', '.npmrc'])
      copyFileSync(join(HOME, file), join(aside, file))
    await promisify(execFile)('npm', ['ci'], { cwd: aside, timeout: INSTALL_TIMEOUT_MS })
    if (!existsSync(place)) renameSync(join(aside, 'node_modules'), place)
  } catch (error) {
    if (!existsSync(place)) throw error
  } finally {
    rmSync(aside, { recursive: true, force: true })
  }
}
