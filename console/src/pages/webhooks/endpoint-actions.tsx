import type { WebhookEndpoint, WebhookEndpointWithSecret } from '@project-api/client'
import { useState } from 'preact/hooks'
import { useLocation } from 'wouter-preact'
import { useAction } from '../../api/queries.ts'
import type { Operation } from '../../api/types.ts'
import { Button } from '../../ui/button.tsx'
import { Dialog } from '../../ui/dialog.tsx'
import { useIsDeleted } from '../../ui/states.tsx'
import { EditDialog } from './endpoint-form.tsx'
import { SECRET_LOST, SecretDialog } from './secret-dialog.tsx'

type Question = 'rotate' | 'disable' | 'enable' | 'delete'

const QUESTIONS: Record<Question, { title: string; does: string; label: string; danger: boolean }> = {
  rotate: {
    title: 'Rotate the secret?',
    does:
      'The endpoint gets a new secret. For 24 hours both secrets are valid: give the receiver the new one in that time. ' +
      'An even older secret is no longer valid.',
    label: 'Rotate',
    danger: false,
  },
  disable: {
    title: 'Disable this endpoint?',
    does: 'Its deliveries wait, and new events are not queued for it.',
    label: 'Disable',
    danger: true,
  },
  enable: {
    title: 'Enable this endpoint?',
    does: 'The waiting deliveries are sent. To send the events of the time in between, recover it afterwards.',
    label: 'Enable',
    danger: false,
  },
  delete: {
    title: 'Delete this endpoint?',
    does: 'It gets no more events, and deliveries that wait are not sent. This cannot be undone.',
    label: 'Delete',
    danger: true,
  },
}

interface EndpointActionsProps {
  endpoint: WebhookEndpoint
  /** Called with the id of the operation. */
  onRecovery: (id: string) => void
}

/** The actions on one endpoint. A disabled one can be neither tested nor recovered. */
export function EndpointActions({ endpoint, onRecovery }: EndpointActionsProps) {
  const [asked, setAsked] = useState<Question | 'edit' | 'recover' | null>(null)
  const [secret, setSecret] = useState<string | null>(null)
  const [, navigate] = useLocation()
  const close = () => setAsked(null)
  const test = useAction(() => 'The test is on its way')
  const rotate = useAction<WebhookEndpointWithSecret>(({ secret: made }) => {
    setSecret(made)
    return made === null ? SECRET_LOST : null
  })
  const change = useAction<WebhookEndpoint>(({ enabled }) =>
    enabled ? 'The endpoint is enabled' : 'The endpoint is disabled',
  )
  const remove = useAction(() => {
    navigate('/webhooks')
    return 'The endpoint was deleted'
  })
  // Only one action runs at a time.
  const isBusy = [test, rotate, change, remove].some(({ isPending }) => isPending)
  const path = `/v1/webhook-endpoints/${endpoint.id}`
  const run: Record<Question, () => void> = {
    rotate: () => rotate.mutate({ method: 'POST', path: `${path}/rotate` }),
    disable: () => change.mutate({ method: 'PATCH', path, body: { enabled: false } }),
    enable: () => change.mutate({ method: 'PATCH', path, body: { enabled: true } }),
    delete: () => remove.mutate({ method: 'DELETE', path }),
  }
  const ask = (question: NonNullable<typeof asked>, label: string) => (
    <Button busy={isBusy} onClick={() => setAsked(question)}>
      {label}
    </Button>
  )
  const isDeleted = useIsDeleted()
  if (isDeleted) return null
  return (
    <>
      {endpoint.enabled && (
        <>
          <Button busy={isBusy} onClick={() => test.mutate({ method: 'POST', path: `${path}/test` })}>
            Test
          </Button>
          {ask('recover', 'Recover')}
        </>
      )}
      {ask('edit', 'Edit')}
      {ask('rotate', 'Rotate the secret')}
      {endpoint.enabled ? ask('disable', 'Disable') : ask('enable', 'Enable')}
      {ask('delete', 'Delete')}
      {asked === 'edit' && <EditDialog endpoint={endpoint} onClose={close} />}
      {asked === 'recover' && <RecoverDialog path={path} onStarted={onRecovery} onClose={close} />}
      {asked !== null && asked !== 'edit' && asked !== 'recover' && (
        <Dialog
          title={QUESTIONS[asked].title}
          confirm={{
            label: QUESTIONS[asked].label,
            kind: QUESTIONS[asked].danger ? 'danger' : 'primary',
            onConfirm: () => {
              run[asked]()
              close()
            },
          }}
          onClose={close}
        >
          <p>{QUESTIONS[asked].does}</p>
        </Dialog>
      )}
      {secret !== null && <SecretDialog secret={secret} isRotated onClose={() => setSecret(null)} />}
    </>
  )
}

function RecoverDialog(props: { path: string; onStarted: (id: string) => void; onClose: () => void }) {
  const { path, onStarted, onClose } = props
  const [since, setSince] = useState('')
  const recover = useAction<Operation>(({ id }) => {
    onStarted(id)
    onClose()
    return null
  })
  const start = () => {
    // The input has a local time; the service needs a time with a zone.
    const body = { since: new Date(since).toISOString() }
    recover.mutate({ method: 'POST', path: `${path}/recover`, body })
  }
  return (
    <Dialog title="Recover" confirm={{ label: 'Recover', busy: recover.isPending, onConfirm: start }} onClose={onClose}>
      <p>
        Sends the events since this time that fit this endpoint and did not arrive: their delivery failed, or they have
        none because the endpoint was disabled or did not exist yet. Events that were delivered, or that wait, are left
        alone. After the endpoint was disabled, choose a time one minute before that.
      </p>
      <label class="field">
        <span>Since</span>
        <input type="datetime-local" required value={since} onInput={(event) => setSince(event.currentTarget.value)} />
      </label>
    </Dialog>
  )
}
