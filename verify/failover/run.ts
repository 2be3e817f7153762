import { throughPgbouncer } from './pgbouncer.ts'
import { rollingRestart } from './proxies.ts'
import { type FailoverFigures, Scene } from './scene.ts'
import { sentinelFailover } from './sentinel.ts'
import { promoteStandby } from './standby.ts'

const RUNS: Record<string, (scene: Scene) => Promise<FailoverFigures>> = {
  standby: promoteStandby,
  sentinel: sentinelFailover,
  nginx: (scene) => rollingRestart(scene, 'nginx'),
  haproxy: (scene) => rollingRestart(scene, 'haproxy'),
  pgbouncer: throughPgbouncer,
}
/** These must be zero in every run. */
const ZERO = ['of them lost', 'jobs that did not end', 'requests dropped or refused']

/** `npm run failover -- standby|sentinel|nginx|haproxy|pgbouncer`: prints a table, and fails when something was lost. */
async function main(name: string | undefined): Promise<number> {
  const run = name === undefined ? undefined : RUNS[name]
  if (run === undefined) {
    process.stderr.write(`npm run failover -- ${Object.keys(RUNS).join('|')}\n`)
    return 64
  }
  const scene = new Scene()
  try {
    const figures = await run(scene)
    process.stdout.write(`| ${name} | |\n|---|---|\n`)
    for (const [what, value] of figures) process.stdout.write(`| ${what.trim()} | ${value} |\n`)
    return figures.some(([what, value]) => ZERO.includes(what) && value !== 0) ? 1 : 0
  } catch (error) {
    process.stderr.write(`${scene.logs.slice(-8_000)}\n`)
    throw error
  } finally {
    await scene.close()
  }
}

process.exitCode = await main(process.argv[2])
// Sockets of the proxies may still be open; everything else has ended.
process.exit()
