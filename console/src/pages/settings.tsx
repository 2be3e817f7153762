import { useResource } from '../api/queries.ts'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { DataTable } from '../ui/table.tsx'
import { duration } from '../ui/time.tsx'

interface Setting {
  name: string
  value: string | number | boolean | null | string[]
  secret: boolean
}

/** The effective settings of the node that answers. The service redacts secrets. */
export function SettingsPage() {
  const settings = useResource<{ data: Setting[] }>('/v1/settings')
  return (
    <>
      <PageHead title="Settings" />
      <Loaded query={settings}>
        <DataTable
          label="Settings of the node that answered"
          empty="The service shows no settings"
          rows={(settings.data?.data ?? []).map((setting) => ({ ...setting, id: setting.name }))}
          columns={[
            { title: 'Setting', render: ({ name }) => <code class="id">{name}</code> },
            { title: 'Value', render: (setting) => <span class="id">{textOf(setting)}</span> },
          ]}
        />
      </Loaded>
    </>
  )
}

const UNITS_MS: Readonly<Record<string, number>> = { MS: 1, SECONDS: 1_000, HOURS: 3_600_000, DAYS: 86_400_000 }

function textOf({ name, value, secret }: Setting): string {
  if (value === null) return 'not set'
  if (secret) return 'set, and never shown'
  if (Array.isArray(value)) return value.length > 0 ? value.join(', ') : 'none'
  const unitMs = UNITS_MS[name.replace(/^.*_/, '')]
  return typeof value === 'number' && unitMs && value > 0 ? `${value} (${duration(value * unitMs)})` : String(value)
}
