import { copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** What a disk writes whole, or not at all. */
const SECTOR_BYTES = 512

/**
 * Leaves of a database what a power failure could: of each sector either what the last sync put on the disk or what was
 * written since. `survives` draws which.
 */
export function cutPower(folders: { live: string; synced: string; left: string }, survives: () => boolean): void {
  for (const name of ['main.db', 'main.db-wal']) {
    const live = join(folders.live, name)
    const synced = join(folders.synced, name)
    const left = join(folders.left, name)
    if (!existsSync(synced)) continue
    if (existsSync(live)) writeFileSync(left, mixed(readFileSync(synced), readFileSync(live), survives))
    else copyFileSync(synced, left)
  }
}

function mixed(synced: Buffer, live: Buffer, survives: () => boolean): Buffer {
  const image = Buffer.alloc(survives() ? live.length : synced.length)
  synced.copy(image)
  for (let at = 0; at < image.length; at += SECTOR_BYTES) {
    if (survives()) live.copy(image, at, at, at + SECTOR_BYTES)
  }
  return image
}
