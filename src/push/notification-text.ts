import { type Static, Type } from 'typebox'
import { isStorableText } from '../core/text.ts'

/** The words of a push, as the operator writes them in the job types file. */
export const notificationTextSchema = Type.Object(
  { title: Type.String({ minLength: 1, maxLength: 200 }), body: Type.String({ maxLength: 1000 }) },
  { additionalProperties: false },
)
export type NotificationText = Static<typeof notificationTextSchema>

/** The texts that the database cannot store, each with its place in the file. */
export function faultsOfTexts(place: string, texts: Record<string, NotificationText>): string[] {
  return Object.entries(texts).flatMap(([name, text]) =>
    Object.entries(text)
      .filter(([, words]) => !isStorableText(words))
      .map(([part]) => `${place}/${name}/${part} must not contain NUL or unpaired surrogates`),
  )
}
