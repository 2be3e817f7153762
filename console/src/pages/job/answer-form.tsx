import { useState } from 'preact/hooks'
import { useAction, useResource } from '../../api/queries.ts'
import type { Job } from '../../api/types.ts'
import { Button } from '../../ui/button.tsx'
import { initialValue, type Schema, SchemaForm } from '../../ui/schema-form.tsx'
import { useIsDeleted } from '../../ui/states.tsx'

interface Interrupt {
  id?: string
  value?: unknown
}

/** The questions of a job that awaits input, and a form for the answers. Other questions get a new form, without the draft. */
export function AnswerForm({ job }: { job: Job }) {
  return <QuestionForm key={JSON.stringify([job.id, job.run_id, job.interrupts])} job={job} />
}

function QuestionForm({ job }: { job: Job }) {
  const types = useResource<{ data: { name: string; resume_schema?: Schema | null }[] }>('/v1/job-types')
  const schema = types.data?.data.find(({ name }) => name === job.type)?.resume_schema ?? null
  const questions = (job.interrupts ?? []) as Interrupt[]
  const [answers, setAnswers] = useState<Record<number, unknown>>({})
  const [isAnswered, setAnswered] = useState(false)
  const send = useAction(() => {
    setAnswered(true)
    return 'The answer was sent'
  })
  const isDeleted = useIsDeleted()
  if (isAnswered || types.isPending || isDeleted) return null
  const answerOf = (index: number) => (index in answers ? answers[index] : initialValue(schema))
  const body = () => {
    const ids = questions.map(({ id }) => id)
    // With its id, an answer never reaches a question that was asked meanwhile.
    if (questions.length > 0 && ids.every((id) => id !== undefined)) {
      return { answers: Object.fromEntries(ids.map((id, index) => [id, answerOf(index)])) }
    }
    return { input: questions.length === 0 ? null : answerOf(0) }
  }
  return (
    <form
      class="card"
      aria-label="Answer"
      onSubmit={(event) => {
        event.preventDefault()
        send.mutate({ method: 'POST', path: `/jobs/${job.id}/resume`, body: body() })
      }}
    >
      {questions.length === 0 && (
        <p>
          The graph has no open question: it stopped at a breakpoint, or its question was answered elsewhere. Continue
          it when you are ready.
        </p>
      )}
      {questions.map(({ id, value }, index) => (
        <fieldset key={id ?? index} class="stack">
          <legend>{questionText(value)}</legend>
          <SchemaForm
            schema={schema}
            value={answerOf(index)}
            onChange={(answer) => setAnswers({ ...answers, [index]: answer })}
          />
        </fieldset>
      ))}
      <div class="actions">
        <Button kind="primary" type="submit" busy={send.isPending}>
          {questions.length === 0 ? 'Continue' : 'Send the answer'}
        </Button>
      </div>
    </form>
  )
}

export function questionText(value: unknown): string {
  if (typeof value === 'string') return value
  if (typeof value === 'object' && value !== null && 'question' in value) return questionText(value.question)
  return JSON.stringify(value)
}
