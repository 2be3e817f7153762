import type { Reference, Response } from './openapi-operation.ts'

/** Says once what several operations refuse alike, under the name of its code: it would be most of the document otherwise. */
export class SharedResponses {
  readonly all: Record<string, Response> = {}
  readonly #names = new Map<string, string>()
  readonly #counts = new Map<string, number>()

  refer(code: string, response: Response): Reference {
    const text = JSON.stringify(response)
    const name = this.#names.get(text) ?? this.#nextName(code)
    this.#names.set(text, name)
    this.all[name] = response
    return { $ref: `#/components/responses/${name}` }
  }

  #nextName(code: string): string {
    const count = (this.#counts.get(code) ?? 0) + 1
    this.#counts.set(code, count)
    return count === 1 ? code : `${code}_${count}`
  }
}
