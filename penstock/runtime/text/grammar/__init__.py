"""Grammars that constrain an answer: sources are translated, compiled for a vocabulary, and followed token by token."""
