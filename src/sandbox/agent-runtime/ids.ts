import { createHash } from 'node:crypto'
import type { Clock } from '../../core/clock.ts'
import type { Random } from '../../core/random.ts'

const GRAPH_NAMESPACE = Buffer.from('6ba7b8219dad11d180b400c04fd430c8', 'hex')

export type NewId = () => string

/** UUIDs of version 7, which sort by time, as in the real runtime. */
export function createIdSource(clock: Clock, random: Random): NewId {
  return () => {
    const bytes = Buffer.from(random.bytes(16))
    bytes.writeUIntBE(clock.now(), 0, 6)
    return format(bytes, 7)
  }
}

/** The id of the assistant that the runtime creates for a graph: a UUID of version 5, the same on every server. */
export function assistantIdOf(graphId: string): string {
  return format(createHash('sha1').update(GRAPH_NAMESPACE).update(graphId).digest().subarray(0, 16), 5)
}

function format(bytes: Buffer, version: number): string {
  bytes.writeUInt8((bytes.readUInt8(6) & 0x0f) | (version << 4), 6)
  bytes.writeUInt8((bytes.readUInt8(8) & 0x3f) | 0x80, 8)
  return bytes.toString('hex').replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5')
}
