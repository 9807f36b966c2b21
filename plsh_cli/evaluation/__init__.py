"""How well a causal language model predicts text, and what it reaches on tasks."""
