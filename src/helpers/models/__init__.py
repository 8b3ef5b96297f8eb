"""Which models and texts there are, where they come from, and how texts become batches."""
