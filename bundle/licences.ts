import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** The licences of the packages that these modules belong to. Their authors ask that a copy of the code contains them. */
export function thirdPartyLicences(modules: readonly string[]): string {
  const folders = new Set(modules.flatMap((path) => /^.*\/node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)?.[0] ?? []))
  const texts = Array.from(folders, textOf).sort()
  return `The files of this package contain code of these packages.\n\n${texts.join('\n\n')}\n`
}

function textOf(folder: string): string {
  const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as {
    name: string
    version: string
    license: string
  }
  const files = readdirSync(folder).filter((file) => /^(?:licen[cs]e|notice|copying)/i.test(file))
  const texts = files.map((file) => readFileSync(join(folder, file), 'utf8').trim())
  return [`== ${name} ${version}, ${license}`, ...texts].join('\n\n')
}
