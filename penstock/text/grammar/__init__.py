"""Languages an answer is held to: sources checked and translated, compiled for a vocabulary, followed token by token."""
