"""How tokens are drawn, from what a client asks to what the engine is told. Knows no dialect."""
