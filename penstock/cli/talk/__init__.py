"""Commands that talk with a model here and now: prompts in, text out."""
