"""Files to named raw tensors: safetensors, GGUF; hubs, wheels and the model store.

A hostile file gets a typed error within bounded memory. Knows no architecture.
"""
