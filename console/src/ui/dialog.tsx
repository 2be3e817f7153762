import type { ComponentChildren } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { Button } from './button.tsx'

interface DialogProps {
  title: string
  /** Absent: the dialog has only a Close button. */
  confirm?: { label: string; kind?: 'primary' | 'danger'; busy?: boolean; disabled?: boolean; onConfirm: () => void }
  onClose: () => void
  children: ComponentChildren
}

/** The browser's own modal dialog: it keeps the focus and closes with Escape. */
export function Dialog({ title, confirm, onClose, children }: DialogProps) {
  const element = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    element.current?.showModal()
  }, [])
  return (
    <dialog ref={element} aria-labelledby="dialog-title" onClose={onClose}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault()
          if (!confirm?.disabled) confirm?.onConfirm()
        }}
      >
        <h2 id="dialog-title">{title}</h2>
        {children}
        <div class="actions">
          <Button onClick={onClose}>{confirm ? 'Cancel' : 'Close'}</Button>
          {confirm && (
            <Button
              kind={confirm.kind ?? 'primary'}
              type="submit"
              busy={confirm.busy ?? false}
              disabled={confirm.disabled ?? false}
            >
              {confirm.label}
            </Button>
          )}
        </div>
      </form>
    </dialog>
  )
}
