import { useState } from 'preact/hooks'
import { useAction } from '../../api/queries.ts'
import type { Operation } from '../../api/types.ts'
import { Button } from '../../ui/button.tsx'
import { Dialog } from '../../ui/dialog.tsx'

interface EraseActionProps {
  sub: string
  path: string
  /** Called with the id of the operation. */
  onStarted: (id: string) => void
}

/** Erases a user. The operator must type the sub, so that no other user is erased by mistake. */
export function EraseAction({ sub, path, onStarted }: EraseActionProps) {
  const [isAsked, setAsked] = useState(false)
  const [typed, setTyped] = useState('')
  const erase = useAction<Operation>(({ id }) => {
    onStarted(id)
    return 'The erasure has started'
  })
  const close = () => {
    setAsked(false)
    setTyped('')
  }
  return (
    <>
      <Button kind="danger" onClick={() => setAsked(true)}>
        Erase
      </Button>
      {isAsked && (
        <Dialog
          title="Erase this user?"
          confirm={{
            label: 'Erase forever',
            kind: 'danger',
            busy: erase.isPending,
            disabled: typed !== sub,
            onConfirm: () => erase.mutate({ method: 'DELETE', path }),
          }}
          onClose={close}
        >
          <p>
            Profile, devices, notifications, inputs, outputs, callback bodies and events of this user are erased.
            Unfinished jobs are cancelled. Jobs and projects stay without their creator, and usage stays as numbers.
          </p>
          <p>This cannot be stopped or undone. The user may sign in again later, but all data is gone.</p>
          <label class="field">
            <span>
              Type <code>{sub}</code> to confirm
            </span>
            <input autocomplete="off" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
          </label>
        </Dialog>
      )}
    </>
  )
}
