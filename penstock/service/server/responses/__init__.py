"""OpenAI's Responses API: responses and conversations, made, streamed and kept. Knows no engine; what is kept is in `store`."""
