import { installPackages } from './packages.ts'

export function installExpress(): void {
  installPackages('express')
}
