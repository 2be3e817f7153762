import { keepPreviousData, useInfiniteQuery, useMutation, useQuery, useQueryClient } from '@tanstack/preact-query'
import { useRef } from 'preact/hooks'
import { useToast } from '../ui/toasts.tsx'
import { useOperator } from './operator.ts'

export type Query = Record<string, string | number | boolean | null | undefined>

export interface Page<Item> {
  data: Item[]
  has_more: boolean
  next_cursor: string | null
}

/** Reads one resource, and again every `refreshMs` and after each action. */
export function useResource<Body>(
  path: string,
  options: { query?: Query; refreshMs?: number; enabled?: boolean; staleMs?: number; keepsLast?: boolean } = {},
) {
  const { api } = useOperator()
  const { query = {}, refreshMs, enabled = true, staleMs, keepsLast = false } = options
  return useQuery({
    queryKey: [path, query],
    queryFn: ({ signal }) => api.request<Body>('GET', path, { query, signal }),
    enabled,
    // The answer to the last query stays on the screen until the next one arrives.
    ...(keepsLast ? { placeholderData: keepPreviousData } : {}),
    ...(staleMs === undefined ? {} : { staleTime: staleMs }),
    ...(refreshMs === undefined ? {} : { refetchInterval: refreshMs }),
  })
}

/** Reads a list page by page. */
export function useList<Item>(path: string, options: { query?: Query; refreshMs?: number } = {}) {
  const { api } = useOperator()
  const { query = {}, refreshMs } = options
  const found = useInfiniteQuery({
    queryKey: [path, query, 'list'],
    queryFn: ({ pageParam, signal }) =>
      api.request<Page<Item>>('GET', path, { query: { ...query, cursor: pageParam }, signal }),
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last: Page<Item>) => (last.has_more ? (last.next_cursor ?? undefined) : undefined),
    ...(refreshMs === undefined ? {} : { refetchInterval: refreshMs }),
  })
  return { ...found, items: found.data?.pages.flatMap((page) => page.data) ?? [] }
}

export interface Action {
  method: 'POST' | 'PUT' | 'PATCH' | 'DELETE'
  path: string
  body?: unknown
  headers?: Record<string, string>
  /** Absent: the client's own limit, which is for work that takes long. */
  timeoutMs?: number
}

/**
 * Sends changes. Each action of the operator has one idempotency key, so that a retry changes nothing twice. The operator
 * who repeats an action without an answer repeats it with the same key. Afterwards everything on the screen is read again.
 */
export function useAction<Body = unknown>(done: (answer: Body) => string | null) {
  const { api } = useOperator()
  const toast = useToast()
  const queries = useQueryClient()
  const unanswered = useRef<{ action: string; key: string } | null>(null)
  return useMutation({
    mutationFn: async ({ method, path, body, headers = {}, timeoutMs }: Action) => {
      const action = JSON.stringify([method, path, body])
      if (unanswered.current?.action !== action) unanswered.current = { action, key: crypto.randomUUID() }
      const signal = timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs)
      const asked = api.request<Body>(method, path, {
        ...(body === undefined ? {} : { body }),
        signal,
        headers: { ...(method === 'POST' ? { 'idempotency-key': unanswered.current.key } : {}), ...headers },
      })
      return asked.catch((error: unknown) => {
        throw signal?.aborted ? new Error('The service did not answer in time') : error
      })
    },
    onSuccess: (answer) => {
      unanswered.current = null
      const message = done(answer)
      if (message !== null) toast({ kind: 'good', message })
    },
    onError: (error) => {
      if (isFinal(error)) unanswered.current = null
      toast({ kind: 'bad', message: error.message })
    },
    onSettled: (_answer, error) => {
      const reading = queries.invalidateQueries()
      // A failure ends at once: a service that hangs would keep the action busy for minutes.
      return error ? undefined : reading
    },
  })
}

/** The service has answered, and refused the action. Without an answer, or with an error of the service, it may have happened. */
export function isFinal(error: Error): boolean {
  return 'status' in error && Number(error.status) >= 400 && Number(error.status) < 500
}
