import { type PageAnswer, preparePage } from './page.ts'
import { PUSH_PREFIXES } from './push-provider-answers.ts'
import { PUSH_DIALS } from './push-provider-dials.ts'

const render = preparePage({ file: './push-provider-page.html', isPanel: true })

/** The page with what arrived and how to break it. */
export function renderPushProviderPage(): PageAnswer {
  return render({ dials: PUSH_DIALS, prefixes: PUSH_PREFIXES })
}
