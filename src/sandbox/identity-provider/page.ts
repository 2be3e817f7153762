import { type PageResponse, preparePage } from '../page.ts'
import { SANDBOX_SCOPES, type SandboxUser } from './users.ts'

const render = preparePage({ file: 'identity-provider/page.html' })

interface IdentityPageOptions {
  issuer: string
  tokenUrl: string
  apiUrl: string
  consoleUrl: string | null
  users: readonly SandboxUser[]
}

/** The page that issues tokens. */
export function renderIdentityPage(options: IdentityPageOptions): PageResponse {
  return render({ ...options, scopes: SANDBOX_SCOPES })
}
