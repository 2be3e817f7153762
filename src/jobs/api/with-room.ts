import type { FastifyRequest } from 'fastify'
import { ANY_BYTES } from '../job-row.ts'
import { LargeDocuments } from '../job-store.ts'

/**
 * Runs work that loads the documents of a job, with the most bytes that it may load. If the documents are larger, waits
 * until the principal has room for them, and runs the work again. The work must leave nothing behind when it throws.
 */
export async function withRoom<T>(
  { hold }: Pick<FastifyRequest, 'hold'>,
  work: (maxBytes: number) => Promise<T>,
): Promise<T> {
  if (hold === null) return work(ANY_BYTES)
  for (;;) {
    try {
      return await work(hold.documentBytes)
    } catch (error) {
      if (!(error instanceof LargeDocuments)) throw error
      await hold.reserve(error.bytes)
    }
  }
}
