"""The settings: their tree, how they are read, and presets for an occasion."""
