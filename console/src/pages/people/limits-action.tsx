import { useState } from 'preact/hooks'
import { useAction } from '../../api/queries.ts'
import { Button } from '../../ui/button.tsx'
import { Dialog } from '../../ui/dialog.tsx'

export interface UsageView {
  period: string
  runs: number
  tokens: { total: number }
  limit: number | null
  limit_tokens: number | null
  own_limits: Limits
}

interface Limits {
  runs: number | null
  tokens: number | null
}

/** Shows what a user has used of a limit of this month. */
export function Used({ amount, limit }: { amount: number | undefined; limit: number | null | undefined }) {
  return (
    <>
      {amount === undefined ? '–' : amount.toLocaleString()}
      {limit != null && ` of ${limit.toLocaleString()}`}
    </>
  )
}

/** Sets the limits of a user per month. An empty field gives the user the service's default. */
export function LimitsAction({ path, own }: { path: string; own: Limits }) {
  const [draft, setDraft] = useState<Record<keyof Limits, string> | null>(null)
  const close = () => setDraft(null)
  const save = useAction(() => {
    close()
    return 'The limits are set'
  })
  const open = () => setDraft({ runs: own.runs?.toString() ?? '', tokens: own.tokens?.toString() ?? '' })
  return (
    <>
      <Button onClick={open}>Limits</Button>
      {draft && (
        <Dialog
          title="Limits per month"
          confirm={{
            label: 'Set limits',
            busy: save.isPending,
            onConfirm: () => save.mutate({ method: 'PUT', path: `${path}/limits`, body: limitsOf(draft) }),
          }}
          onClose={close}
        >
          <p>At a limit, new jobs of this user are refused until the next month (UTC). Running jobs continue.</p>
          {(['runs', 'tokens'] as const).map((unit) => (
            <label key={unit} class="field">
              <span>{unit === 'runs' ? 'Runs' : 'Tokens'}</span>
              <input
                type="number"
                min={0}
                max={1_000_000_000_000}
                step={1}
                placeholder="The service’s default"
                value={draft[unit]}
                onInput={(event) => setDraft({ ...draft, [unit]: event.currentTarget.value })}
              />
            </label>
          ))}
        </Dialog>
      )}
    </>
  )
}

function limitsOf(draft: Record<keyof Limits, string>): Limits {
  const limit = (text: string) => (text === '' ? null : Number(text))
  return { runs: limit(draft.runs), tokens: limit(draft.tokens) }
}
