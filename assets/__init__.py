"""Data only: checkpoints, latency profiles."""
