"""Plumbing that knows no BERT: the machine, timing, metrics, plots, files, tensors."""
