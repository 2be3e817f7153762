import fs from 'node:fs/promises'
import { syncBuiltinESMExports } from 'node:module'
import type { TestContext } from 'node:test'

/** For the rest of the test every disk has this share of free blocks. */
export function fillDisk(t: TestContext, freeShare: number): void {
  const bavail = Math.round(1_000 * freeShare)
  t.mock.method(fs, 'statfs', async () => ({ blocks: 1_050, bfree: bavail + 50, bavail, bsize: 4_096 }))
  syncBuiltinESMExports()
  t.after(() => {
    t.mock.restoreAll()
    syncBuiltinESMExports()
  })
}
