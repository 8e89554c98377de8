"""Text to tokens and back: tokenizers, chat templates, streams of text.

Knows no HTTP and no engine.
"""
