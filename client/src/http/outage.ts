import { mayPass, NotProjectApi } from '../errors.ts'

/** Whether waiting may help, after the service has answered once. A page of a proxy is then no sign of a wrong address. */
export function isOutage(error: unknown): boolean {
  return mayPass(error) || error instanceof NotProjectApi
}
