import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { findProgram } from '../../../test/support/binaries.ts'

/** Why syncs cannot be slowed, held or failed on this machine; `false` where they can. */
export function slowSyncMissing(): string | false {
  if (process.platform !== 'linux') return 'needs Linux: syncs are slowed by a preloaded library'
  return findProgram('gcc') === undefined && 'needs gcc: the library that slows syncs is compiled for the run'
}

/** Compiles the library into the folder; a process started with it as `LD_PRELOAD` obeys the settings in slow-sync.c. */
export function compileSlowSync(folder: string): string {
  const library = join(folder, 'slow-sync.so')
  const source = fileURLToPath(new URL('./slow-sync.c', import.meta.url))
  execFileSync('gcc', ['-shared', '-fPIC', '-O2', '-Wall', '-o', library, source, '-ldl'])
  return library
}
