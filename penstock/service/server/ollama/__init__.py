"""Ollama's dialect: chat, generate, embed and the list of models, in lines of JSON. Knows no engine."""
