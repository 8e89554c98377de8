"""Tokenizers of Hugging Face and GGUF files, and incremental detokenising."""
