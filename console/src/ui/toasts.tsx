import { type ComponentChildren, createContext } from 'preact'
import { useCallback, useContext, useState } from 'preact/hooks'

interface Toast {
  kind: 'good' | 'bad'
  message: string
}

const SHOWN_MS = 6_000
const MAX_TOASTS = 4
const ToastContext = createContext<(toast: Toast) => void>(() => {})

/** Shows the result of an action. A failure stays until the operator closes it. */
export function Toasts({ children }: { children: ComponentChildren }) {
  const [toasts, setToasts] = useState<Toast[]>([])
  const remove = useCallback((toast: Toast) => setToasts((all) => all.filter((one) => one !== toast)), [])
  const add = useCallback(
    (toast: Toast) => {
      setToasts((all) => [...all, toast].slice(-MAX_TOASTS))
      if (toast.kind === 'good') setTimeout(() => remove(toast), SHOWN_MS)
    },
    [remove],
  )
  return (
    <ToastContext.Provider value={add}>
      {children}
      <div class="toasts" role="status" aria-live="polite">
        {toasts.map((toast, index) => (
          <div key={`${index}${toast.message}`} class={`toast ${toast.kind}`}>
            <span>{toast.message}</span>
            <button type="button" class="button quiet" aria-label="Close" onClick={() => remove(toast)}>
              ×
            </button>
          </div>
        ))}
      </div>
    </ToastContext.Provider>
  )
}

export function useToast(): (toast: Toast) => void {
  return useContext(ToastContext)
}
