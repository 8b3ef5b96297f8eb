"""What stands behind a notebook: its proof and its safety, around its recipe."""
