"""The OpenAI dialect: chat, completions, embeddings, models; wire bodies in, wire bodies out."""
