import { Button } from './button.tsx'
import { useToast } from './toasts.tsx'

export function CopyButton({
  label,
  text,
  children = 'Copy',
}: {
  label: string
  text: () => string
  children?: string
}) {
  const toast = useToast()
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text())
      toast({ kind: 'good', message: 'Copied' })
    } catch {
      toast({ kind: 'bad', message: 'The browser did not allow copying' })
    }
  }
  return (
    <Button kind="quiet" label={label} onClick={() => void copy()}>
      {children}
    </Button>
  )
}
