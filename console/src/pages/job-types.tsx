import { useResource } from '../api/queries.ts'
import { JsonView } from '../ui/json-view.tsx'
import { PageHead } from '../ui/page-head.tsx'
import { Loaded } from '../ui/states.tsx'
import { duration } from '../ui/time.tsx'

interface JobTypeView {
  name: string
  description: string | null
  assistant_id: string
  output_key: string | null
  may_pause: boolean
  deadline_seconds: number
  answer_within_seconds: number | null
  remind_after_seconds: number | null
  max_running: number | null
  max_running_per_owner: number | null
  [field: string]: unknown
}

const SCHEMAS = ['input_schema', 'output_schema', 'resume_schema', 'configurable_schema'] as const

/** The names of the job types, for filters. */
export function useTypeNames(): string[] {
  return useResource<{ data: JobTypeView[] }>('/v1/job-types').data?.data.map(({ name }) => name) ?? []
}

/** The job types of this deployment, with their schemas. */
export function JobTypesPage() {
  const types = useResource<{ data: JobTypeView[] }>('/v1/job-types')
  return (
    <>
      <PageHead title="Job types" />
      <Loaded query={types}>
        {types.data?.data.map((type) => (
          <section key={type.name} class="card" aria-label={type.name}>
            <h2>{type.name}</h2>
            {type.description && <p>{type.description}</p>}
            <dl class="facts">
              <dt>Assistant</dt>
              <dd>
                <code>{type.assistant_id}</code>
              </dd>
              <dt>Output</dt>
              <dd>{type.output_key ? <code>{type.output_key}</code> : 'the last assistant message'}</dd>
              <dt>Deadline</dt>
              <dd>{duration(type.deadline_seconds * 1_000)}</dd>
              <dt>May pause</dt>
              <dd>{type.may_pause ? 'yes' : 'no'}</dd>
              <Limit name="Answer within" value={inSeconds(type.answer_within_seconds)} />
              <Limit name="Reminder after" value={inSeconds(type.remind_after_seconds)} />
              <Limit name="Active runs" value={type.max_running} />
              <Limit name="Active runs of an owner" value={type.max_running_per_owner} />
            </dl>
            <div class="columns">
              {SCHEMAS.filter((name) => type[name]).map((name) => (
                <JsonView key={name} title={name.replaceAll('_', ' ')} value={type[name]} />
              ))}
            </div>
          </section>
        ))}
      </Loaded>
    </>
  )
}

function inSeconds(seconds: number | null): string | null {
  return seconds === null ? null : duration(seconds * 1_000)
}

/** Absent if the type has no such limit. */
function Limit({ name, value }: { name: string; value: string | number | null }) {
  if (value === null) return null
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  )
}
