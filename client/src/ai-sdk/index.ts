export { type ChatTransportOptions, createChatTransport, JobChatTransport, textOfMessage } from './chat-transport.ts'
export type { PlaceStorage } from './places.ts'
