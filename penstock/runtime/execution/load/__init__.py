"""Files to tensors on a device: recipes, quantized layouts, and the audit of what was loaded."""
