import { matchesGlob } from 'node:path'

export interface Step {
  name: string
  /** The text after the instruction's name. */
  text: string
}

export interface Stage {
  base: string
  /** Absent for the last stage: no stage copies from it. */
  name?: string
  steps: Step[]
}

/** Reads the part of the Dockerfile syntax that our file uses: stages, one instruction per line, and continued lines. */
export function parseDockerfile(text: string): Stage[] {
  const stages: Stage[] = []
  const lines = text
    .replaceAll(/^\s*#.*\n/gm, '')
    .replaceAll(/\\\n\s*/g, ' ')
    .split('\n')
  for (const line of lines.map((one) => one.trim()).filter((one) => one !== '')) {
    const [, name = '', rest = ''] = /^([A-Z]+)\s+(.*)$/.exec(line) ?? []
    if (name === 'FROM') {
      const [, base = '', alias] = /^(\S+)(?: AS (\S+))?$/.exec(rest) ?? []
      stages.push({ base, ...(alias && { name: alias }), steps: [] })
    } else {
      const stage = stages.at(-1)
      if (!stage || name === '') throw new Error(`The Dockerfile has a line that is not understood: ${line}`)
      stage.steps.push({ name, text: rest })
    }
  }
  return stages
}

/** The instructions that this command carries out. Any other one must be added to it first. */
export const UNDERSTOOD = ['WORKDIR', 'COPY', 'RUN', 'ENV', 'USER', 'VOLUME', 'EXPOSE', 'CMD', 'HEALTHCHECK']

/** True if `.dockerignore` keeps a path of the repository out of the image. Our file has no exceptions (`!`). */
export function isIgnored(path: string, dockerignore: string): boolean {
  return dockerignore.split('\n').some((pattern) => pattern !== '' && matchesGlob(path, pattern))
}
