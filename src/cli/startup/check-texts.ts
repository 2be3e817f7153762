import type { JobTypes } from '../../jobs/job-types.ts'
import type { ProjectNotifications } from '../../projects/project-news.ts'
import { MAX_PAYLOAD_BYTES, payloadSizeOf } from '../../push/fcm/fcm-message.ts'

/** All of ours are equally long. */
const ID = 'ntf_00000000000000000000000000'
/** A control character takes six bytes, and a name has 200 of them at most. */
const LONGEST_NAME = '\u0001'.repeat(200)

interface Text {
  title: string
  body: string
}

/** The configured texts that could not be pushed, with whatever comes with them; every delivery of them would fail. */
export function faultsOfTextSizes(texts: { jobTypes: JobTypes; projectNotifications: ProjectNotifications }): string[] {
  const faults: string[] = []
  const check = (place: string, text: Text, data: Record<string, string>) => {
    const size = payloadSizeOf({ ...text, data, link: null, tag: ID })
    if (size > MAX_PAYLOAD_BYTES) faults.push(`${place} makes a push of ${size} bytes, over ${MAX_PAYLOAD_BYTES}`)
  }
  for (const [type, { notifications }] of texts.jobTypes) {
    for (const [status, text] of Object.entries(notifications)) {
      check(`/types/${type}/notifications/${status}`, text, { job_id: ID, type, status })
    }
  }
  for (const [deed, text] of Object.entries(texts.projectNotifications)) {
    check(`/project_notifications/${deed}`, text, { project_id: ID, name: LONGEST_NAME })
  }
  return faults
}
