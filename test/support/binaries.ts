import { execFileSync } from 'node:child_process'
import { existsSync, globSync } from 'node:fs'
import { delimiter, dirname, join } from 'node:path'
import { PATIENCE_MS } from './patience.ts'

/** The folder of the newest PostgreSQL server on this machine. */
export function findPostgres(): string | undefined {
  postgres ??= { folder: newestPostgres() }
  return postgres.folder
}

/** The Redis server on this machine. */
export function findRedis(): string | undefined {
  return findProgram('redis-server')
}

/** A browser that understands Chromium's switches. */
export function findChromium(): string | undefined {
  return findProgram('chromium') ?? findProgram('chromium-browser') ?? findProgram('google-chrome')
}

export function findProgram(name: string): string | undefined {
  return searchPath()
    .map((folder) => join(folder, name))
    .find((file) => existsSync(file))
}

let postgres: { folder: string | undefined } | undefined

function newestPostgres(): string | undefined {
  // Debian and Homebrew keep the server's programs off the PATH.
  const kept = ['/usr/lib/postgresql/*/bin', '/usr/pgsql-*/bin', '/opt/homebrew/opt/postgresql*/bin']
  const candidates = [...searchPath(), ...globSync(kept), ...configuredFolder()]
  const [newest] = [...new Set(candidates)]
    .filter((folder) => ['initdb', 'postgres', 'psql'].every((program) => existsSync(join(folder, program))))
    .map((folder) => ({ folder, version: versionIn(folder) }))
    .sort((a, b) => b.version - a.version)
  return newest?.folder
}

function searchPath(): string[] {
  return (process.env.PATH ?? '').split(delimiter).filter((folder) => folder !== '')
}

function configuredFolder(): string[] {
  const config = searchPath()
    .map((folder) => join(folder, 'pg_config'))
    .find((file) => existsSync(file))
  if (config === undefined) return []
  try {
    return [execFileSync(config, ['--bindir'], { encoding: 'utf8', timeout: PATIENCE_MS }).trim()]
  } catch {
    return [dirname(config)]
  }
}

function versionIn(folder: string): number {
  const said = execFileSync(join(folder, 'postgres'), ['--version'], { encoding: 'utf8', timeout: PATIENCE_MS })
  return Number(/\d+(?:\.\d+)?/.exec(said)?.[0] ?? 0)
}
