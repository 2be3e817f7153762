import { useJobs } from '@project-api/client/react'
import type { Api } from './session.ts'

/** All jobs of the user, live. */
export function Jobs({ api }: { api: Api }) {
  const { jobs, isLoading, error } = useJobs(api, { limit: 20 })
  return (
    <section aria-label="Jobs">
      <h2>Jobs</h2>
      {error && <p role="alert">{error.message}</p>}
      {!isLoading && jobs.length === 0 && <p className="quiet">None yet.</p>}
      <ul>
        {jobs.map(({ id, type, status, settled_by, created_at }) => (
          <li key={id}>
            <span className={`status ${status}`}>{status.replace('_', ' ')}</span>
            <span>
              {type} <time dateTime={created_at}>{new Date(created_at).toLocaleTimeString()}</time>
              {settled_by && <small>found by {settled_by}</small>}
            </span>
          </li>
        ))}
      </ul>
    </section>
  )
}
