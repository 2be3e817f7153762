import { CopyButton } from '../../ui/copy-button.tsx'
import { Dialog } from '../../ui/dialog.tsx'

export const SECRET_LOST = 'The answer with the secret was lost. Rotate the secret to get a new one.'

/** Shows a new secret, once. */
export function SecretDialog(props: { secret: string; isRotated?: boolean; onClose: () => void }) {
  const { secret, isRotated = false, onClose } = props
  return (
    <Dialog title="The new secret" onClose={onClose}>
      <p>
        Copy it now: it is not shown again. The receiver verifies messages with it.
        {isRotated && ' The old secret and this one are both valid for 24 hours.'}
      </p>
      <code class="id">{secret}</code>
      <CopyButton label="Copy the secret" text={() => secret}>
        Copy the secret
      </CopyButton>
    </Dialog>
  )
}
