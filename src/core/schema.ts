export { type Static, type TSchema, type TSchemaOptions, Type } from 'typebox'
