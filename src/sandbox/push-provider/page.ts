import { type PageAnswer, preparePage } from '../page.ts'
import { PUSH_PREFIXES } from './answers.ts'
import { PUSH_DIALS } from './faults.ts'

const render = preparePage({ file: new URL('./page.html', import.meta.url), isPanel: true })

/** The page with what arrived and how to break it. */
export function renderPushProviderPage(): PageAnswer {
  return render({ dials: PUSH_DIALS, prefixes: PUSH_PREFIXES })
}
