"""Interactive explorers: memory, quantization, temperature, pipeline chooser."""
