import { addLivePart, EMPTY_TRANSCRIPT, type LiveTranscript } from '@project-api/client'
import { useQueryClient } from '@tanstack/preact-query'
import { useEffect, useState } from 'preact/hooks'
import { useOperator } from '../../api/operator.ts'
import type { Job } from '../../api/types.ts'

/** The live output of the run. */
export function LiveOutput({ job }: { job: Job }) {
  const { api } = useOperator()
  const queries = useQueryClient()
  const [transcript, setTranscript] = useState<LiveTranscript>(EMPTY_TRANSCRIPT)
  const { id, run_id: runId } = job
  // A new run starts with an empty output.
  useEffect(() => {
    const stopping = new AbortController()
    void follow(stopping.signal)
    return () => stopping.abort()

    async function follow(signal: AbortSignal): Promise<void> {
      setTranscript(EMPTY_TRANSCRIPT)
      try {
        for await (const part of api.jobs.handle(id).live({ signal })) {
          setTranscript((before) => addLivePart(before, part))
        }
      } catch {
        // The page reads the job every few seconds, so it shows the end without the stream.
      }
      if (!signal.aborted) void queries.invalidateQueries({ queryKey: [`/jobs/${id}`] })
    }
  }, [api, queries, id, runId])
  if (transcript.messages.length === 0) return null
  return (
    <section class="card" aria-label="Live output" aria-live="polite">
      <h2>Live output</h2>
      {transcript.messages.map((message) => (
        <div key={message.id} class="message">
          <span class="muted">{message.role}</span>
          <p class="prose">{message.text}</p>
        </div>
      ))}
    </section>
  )
}
