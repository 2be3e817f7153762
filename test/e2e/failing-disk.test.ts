import assert from 'node:assert/strict'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { compileSlowSync, slowSyncMissing } from '../../verify/bench/slow-disk/slow-sync.ts'
import { freshFolder, runProgram } from '../support/program.ts'
import { settingsWith, startServe } from '../support/served.ts'

const FAILED = 1
const UNAVAILABLE = 69

/** Loaded before the program: from then on no file can be written. */
const READ_ONLY_DISK = `
import fs from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
fs.writeFileSync = fs.accessSync = (path) => {
  throw Object.assign(new Error("EROFS: read-only file system, '" + path + "'"), { code: 'EROFS' })
}
syncBuiltinESMExports()
`

describe('a disk that fails', () => {
  test('a disk that fails under a running service ends it with one log line, and with a code that systemd restarts', {
    skip: slowSyncMissing(),
  }, async () => {
    const folder = freshFolder()
    const control = join(folder, 'control')
    mkdirSync(control)
    const settings = { LD_PRELOAD: compileSlowSync(folder), SYNC_CONTROL: control }
    const { program } = await startServe({ settings })
    // The next heartbeat fails.
    writeFileSync(join(control, 'fail'), '')
    const { code, output, errors } = await program.untilEnded()
    assert.deepEqual([code, errors], [FAILED, ''])
    const lines = output.trimEnd().split('\n')
    const crashes = lines.map((line) => JSON.parse(line) as { level: number; msg: string; err?: { message: string } })
    const errorLines = crashes.filter(({ level }) => level >= 50)
    assert.deepEqual(
      errorLines.map(({ msg }) => msg),
      ['service.crashed'],
    )
    assert.match(errorLines[0]?.err?.message ?? '', /^EIO: /)
  })

  const startOnReadOnlyDisk = async (dataDir: string) => {
    const disk = join(freshFolder(), 'read-only-disk.mjs')
    writeFileSync(disk, READ_ONLY_DISK)
    const settings = await settingsWith({ DATA_DIR: dataDir, NODE_OPTIONS: `--import=${disk}` })
    const { code, errors } = await runProgram(['serve'], { settings })
    assert.match(errors, /^DATA_DIR \S+ cannot be used: EROFS: read-only file system, [^\n]+\n$/)
    assert.equal(code, UNAVAILABLE)
  }

  test('a start on a read-only disk says so in one line, and exits with a code that systemd restarts', async () => {
    await startOnReadOnlyDisk(join(freshFolder(), 'data'))
  })

  test('so does a start in a folder on a read-only disk that never had a lock file', async () => {
    const folder = freshFolder()
    // SQLite can create no file of this name, and does not say why. Root could create a file in every writable folder.
    mkdirSync(join(folder, 'lock.db'))
    await startOnReadOnlyDisk(folder)
  })
})
