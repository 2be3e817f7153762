export { type ChatData, type ChatMessage, type ChatMetadata, textOfMessage } from './chat-messages.ts'
export { type ChatTransportOptions, createChatTransport, JobChatTransport, type LoadOptions } from './chat-transport.ts'
export type { MessagesUpdate } from './watch-conversation.ts'
