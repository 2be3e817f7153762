import { findRedis } from './binaries.ts'
import { ServerProcess, startOnFreePort } from './server-process.ts'

export interface RedisServer {
  url: string
  stop(): Promise<void>
  kill(): Promise<void>
  /** Comes back empty, on the same port. */
  restart(): Promise<void>
  /** It neither answers nor closes connections until `resume`. */
  pause(): void
  resume(): void
}

/** A private Redis from the machine's own binary, in memory alone. */
export async function startRedis(): Promise<RedisServer> {
  const command = findRedis()
  if (command === undefined) throw new Error('Redis is not installed (looked for redis-server)')
  const server = new ServerProcess('test-redis')
  try {
    const port = await startOnFreePort((port) =>
      server.start({
        command,
        args: ['--port', String(port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'],
        ready: /Ready to accept connections/,
        stopSignal: 'SIGTERM',
      }),
    )
    return {
      url: `redis://127.0.0.1:${port}`,
      stop: () => server.stop(),
      kill: () => server.kill(),
      restart: () => server.restart(),
      pause: () => server.pause(),
      resume: () => server.resume(),
    }
  } catch (error) {
    await server.stop()
    throw error
  }
}
