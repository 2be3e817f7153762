import { NODE_LIFE_MS } from '../../../src/db/nodes/node-store.ts'
import { STEP_MS, serviceTimeAt } from '../../../src/db/nodes/service-clock.ts'
import { NODE_NAMES } from '../faults/plan.ts'
import type { SimNode } from '../system/node.ts'
import type { SimulatedSystem } from '../system/simulated-system.ts'

const WATCH_MS = 1_000
/** After the faults, while no node is up. */
const DOWN_MS = 60_000
/** While the loops of the nodes are slowed down. */
const SLOWED_MS = 600_000
/** A smaller step of the clock is believed. The rest is the time that a heartbeat takes. */
const SLACK_MS = STEP_MS + 500
/**
 * Before its first heartbeats, a node's time may be late by the time that the database needed to answer. A node that
 * starts right after a small step believes it until the other node has noted it.
 */
const FIRST_HEARTBEATS_MS = 10_000

/**
 * The service's time is the real one, whatever the database's clock shows. While that clock is wrong, the service's time
 * approaches it slowly.
 */
export function watchServiceTime(system: SimulatedSystem): void {
  const { time, nodes } = system
  const wrongMs = { ahead: 0, behind: 0 }
  const watch = () => {
    if (system.databaseAheadMs > 0) wrongMs.ahead += WATCH_MS
    if (system.databaseAheadMs < 0) wrongMs.behind += WATCH_MS
    const up = NODE_NAMES.map((name) => nodes[name]).filter((node) => node.up)
    for (const node of up) checkTime(system, node, wrongMs)
    const isDown = up.length === 0 && !system.faultsActive
    const everyMs = system.isSlowed ? SLOWED_MS : isDown ? DOWN_MS : WATCH_MS
    // The seconds in which the database's clock is wrong are counted.
    time.after(system.databaseAheadMs === 0 ? everyMs : WATCH_MS, watch)
  }
  time.after(WATCH_MS, watch)
}

function checkTime(system: SimulatedSystem, node: SimNode, wrongMs: { ahead: number; behind: number }): void {
  const { now } = system.time
  const aheadMs = (node.serviceMs ?? now) - now
  const isNew = now < Math.max(node.bootedAtMs, node.suspendedUntilMs) + FIRST_HEARTBEATS_MS
  // Until its next heartbeat, a node does not know that the clock is right again.
  const unawareMs = WATCH_MS + node.heartbeatAgeMs
  const mayBeAheadMs = SLACK_MS + driftOf(1) * (wrongMs.ahead + unawareMs) + (isNew ? NODE_LIFE_MS : 0)
  if (aheadMs > mayBeAheadMs) system.violate('time', `node ${node.name} is ${aheadMs} ms ahead`)
  if (isNew) return
  const mayBeBehindMs = SLACK_MS + driftOf(-1) * (wrongMs.behind + unawareMs)
  if (-aheadMs > mayBeBehindMs) system.violate('time', `node ${node.name} is ${-aheadMs} ms behind`)
}

const LONG_MS = 1_000_000

/** By which share the service's time runs too fast (1) or too slowly (-1) after a step in this direction. */
function driftOf(direction: 1 | -1): number {
  const offset = -direction * 1_000 * LONG_MS
  const step = { version: 1, offset_ms: offset, calendar_offset_ms: offset, stepped_at: 0 }
  return Math.abs(serviceTimeAt(LONG_MS, step) - LONG_MS - offset) / LONG_MS
}
