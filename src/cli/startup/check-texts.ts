import type { JobTypes } from '../../jobs/job-types.ts'
import type { ProjectNotifications } from '../../projects/project-notifications.ts'
import type { NotificationText } from '../../push/notification-text.ts'
import { PUSH_PROVIDERS } from '../../push/provider-registry.ts'

/** All our ids have this length. */
const ID = 'ntf_00000000000000000000000000'
/** A project's name has at most 200 characters, and a control character takes six bytes. */
const LONGEST_NAME = '\u0001'.repeat(200)

/** The configured texts that are too long for a push together with their data: every delivery would fail. */
export function faultsOfTextSizes(texts: { jobTypes: JobTypes; projectNotifications: ProjectNotifications }): string[] {
  const faults: string[] = []
  const check = (place: string, text: NotificationText, data: Record<string, string>) => {
    for (const { limits, payloadBytesOf } of PUSH_PROVIDERS) {
      const bytes = payloadBytesOf({ ...text, data, link: null, tag: ID })
      if (bytes <= limits.payloadBytes) continue
      faults.push(`${place} makes a push of ${bytes} bytes, over ${limits.payloadBytes}`)
    }
  }
  for (const [type, { notifications }] of texts.jobTypes) {
    for (const [status, text] of Object.entries(notifications)) {
      check(`/types/${type}/notifications/${status}`, text, { job_id: ID, type, status })
    }
  }
  for (const [change, text] of Object.entries(texts.projectNotifications)) {
    check(`/project_notifications/${change}`, text, { project_id: ID, name: LONGEST_NAME })
  }
  return faults
}
