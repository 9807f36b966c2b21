"""Pretrained models: loading them, what they read from a text, and their queries, keys and values."""
