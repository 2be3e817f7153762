import { copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** A disk writes a sector completely or not at all. */
const SECTOR_BYTES = 512

/**
 * Simulates a power failure: each sector of the database has either its content at the last sync or its newer content.
 * `survives` decides for each sector.
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
