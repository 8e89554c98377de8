"""Operations over other caches than keys and values: latents, states."""
