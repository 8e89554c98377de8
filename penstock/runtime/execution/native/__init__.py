"""Steps through the native CPU library: packed weights, one call a step."""
