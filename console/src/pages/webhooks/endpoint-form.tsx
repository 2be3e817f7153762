import type { WebhookEndpoint, WebhookEndpointInput, WebhookEndpointWithSecret } from '@project-api/client'
import { useState } from 'preact/hooks'
import { useAction, useResource } from '../../api/queries.ts'
import { Dialog } from '../../ui/dialog.tsx'
import { SECRET_LOST } from './secret-dialog.tsx'

type EventType = WebhookEndpointInput['events'][number]

/** In the order of the screen. An event without a row does not compile. */
const EVENTS: Record<EventType, true> = {
  'job.created': true,
  'job.updated': true,
  'job.completed': true,
  'job.failed': true,
  'job.cancelled': true,
  'job.awaiting_input': true,
  'job.reminder': true,
  'project.created': true,
  'project.updated': true,
  'project.deleted': true,
  'usage.threshold': true,
  'webhook.disabled': true,
}

interface Draft {
  url: string
  events: readonly string[]
  /** Empty: all types. */
  types: readonly string[]
  project_id: string
  description: string
}

const path = '/v1/webhook-endpoints'

export function CreateDialog(props: { onCreated: (secret: string | null) => void; onClose: () => void }) {
  const create = useAction<WebhookEndpointWithSecret>(({ secret }) => {
    props.onCreated(secret)
    return secret === null ? SECRET_LOST : null
  })
  return (
    <FormDialog
      title="New webhook endpoint"
      label="Create"
      initial={{ url: '', events: [], types: [], project_id: '', description: '' }}
      busy={create.isPending}
      error={create.error}
      onSubmit={(draft) => create.mutate({ method: 'POST', path, body: bodyOf(draft) })}
      onClose={props.onClose}
    />
  )
}

/** Sends only the fields that the operator changed, so that it undoes no change of another operator. */
export function EditDialog({ endpoint, onClose }: { endpoint: WebhookEndpoint; onClose: () => void }) {
  const save = useAction(() => {
    onClose()
    return 'The endpoint was changed'
  })
  // The page reads the endpoint again while the form is open.
  const [initial] = useState<Draft>({
    url: endpoint.url,
    events: endpoint.events,
    types: endpoint.types ?? [],
    project_id: endpoint.project_id ?? '',
    description: endpoint.description ?? '',
  })
  const submit = (draft: Draft) => {
    const before: Record<string, unknown> = bodyOf(initial)
    const changes = Object.entries(bodyOf(draft)).filter(
      ([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name]),
    )
    if (changes.length === 0) onClose()
    else save.mutate({ method: 'PATCH', path: `${path}/${endpoint.id}`, body: Object.fromEntries(changes) })
  }
  return (
    <FormDialog
      title="Edit the endpoint"
      label="Save"
      initial={initial}
      busy={save.isPending}
      error={save.error}
      onSubmit={submit}
      onClose={onClose}
    />
  )
}

interface FormDialogProps {
  title: string
  label: string
  initial: Draft
  busy: boolean
  /** Shown in the form: on a phone the form covers the messages of the page. */
  error: Error | null
  onSubmit: (draft: Draft) => void
  onClose: () => void
}

function FormDialog({ title, label, initial, busy, error, onSubmit, onClose }: FormDialogProps) {
  const [draft, setDraft] = useState(initial)
  const types = useResource<{ data: { name: string }[] }>('/v1/job-types')
  const set = (changes: Partial<Draft>) => setDraft({ ...draft, ...changes })
  const names = new Set([...(types.data?.data.map(({ name }) => name) ?? []), ...initial.types])
  return (
    <Dialog
      title={title}
      confirm={{ label, busy, disabled: draft.events.length === 0, onConfirm: () => onSubmit(draft) }}
      onClose={onClose}
    >
      <label class="field">
        <span>URL</span>
        <input
          type="url"
          required
          maxLength={2000}
          placeholder="https://backend.example.com/hooks"
          value={draft.url}
          onInput={(event) => set({ url: event.currentTarget.value })}
        />
      </label>
      <Choices legend="Events" all={Object.keys(EVENTS)} chosen={draft.events} onChange={(events) => set({ events })} />
      {names.size > 0 && (
        <Choices
          legend="Only jobs of these types (none chosen: all)"
          all={[...names]}
          chosen={draft.types}
          onChange={(chosen) => set({ types: chosen })}
        />
      )}
      <label class="field">
        <span>Only this project (its id)</span>
        <input
          maxLength={64}
          placeholder="All projects"
          value={draft.project_id}
          onInput={(event) => set({ project_id: event.currentTarget.value })}
        />
      </label>
      <label class="field">
        <span>Description</span>
        <input
          maxLength={500}
          value={draft.description}
          onInput={(event) => set({ description: event.currentTarget.value })}
        />
      </label>
      {error && (
        <p class="notice bad" role="alert">
          {error.message}
        </p>
      )}
    </Dialog>
  )
}

interface ChoicesProps {
  legend: string
  all: readonly string[]
  chosen: readonly string[]
  onChange: (chosen: string[]) => void
}

function Choices({ legend, all, chosen, onChange }: ChoicesProps) {
  const toggle = (name: string) => onChange(all.filter((one) => chosen.includes(one) !== (one === name)))
  return (
    <fieldset>
      <legend>{legend}</legend>
      <div class="checks">
        {all.map((name) => (
          <label key={name}>
            <input type="checkbox" checked={chosen.includes(name)} onChange={() => toggle(name)} />
            <span class="id">{name}</span>
          </label>
        ))}
      </div>
    </fieldset>
  )
}

function bodyOf({ url, events, types, project_id, description }: Draft) {
  return {
    url: url.trim(),
    events,
    types: types.length === 0 ? null : types,
    project_id: project_id.trim() || null,
    description: description.trim() || null,
  }
}
