import type { ComponentChildren } from 'preact'

interface ButtonProps {
  kind?: 'primary' | 'plain' | 'danger' | 'quiet'
  type?: 'button' | 'submit'
  busy?: boolean
  disabled?: boolean
  label?: string
  onClick?: () => void
  children: ComponentChildren
}

export function Button({
  kind = 'plain',
  type = 'button',
  busy = false,
  disabled,
  label,
  onClick,
  children,
}: ButtonProps) {
  return (
    <button
      type={type}
      class={`button ${kind}`}
      disabled={busy || disabled}
      aria-busy={busy}
      aria-label={label}
      onClick={onClick}
    >
      {children}
    </button>
  )
}
