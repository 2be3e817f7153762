import { ApiError } from '../core/errors.ts'
import { isJsonTooDeep, MAX_JSON_DEPTH } from '../core/json.ts'
import type { App } from './app-instance.ts'

/** Reads `application/json` (or `…+json`) bodies: bounded in depth before anything parses them, poisoned keys refused. */
export function readJsonBodies(app: App): void {
  const parse = app.getDefaultJsonParser('error', 'error')
  app.removeAllContentTypeParsers()
  app.addContentTypeParser<string>(
    /^application\/(?:[\w.-]+\+)?json(?=\s*(?:;|$))/,
    { parseAs: 'string' },
    (request, body, done) => {
      if (isJsonTooDeep(body)) {
        done(new ApiError('invalid_request', `body must not be nested deeper than ${MAX_JSON_DEPTH} levels`))
        return
      }
      void parse(request, body, (error, value) => {
        if (!error) return done(null, value)
        const empty = (error as { code?: string }).code === 'FST_ERR_CTP_EMPTY_JSON_BODY'
        done(
          new ApiError('invalid_request', empty ? 'body must not be empty' : 'body is not valid JSON', {
            cause: error,
          }),
        )
      })
    },
  )
}
