"""Training from scratch: the model, the recipe, the loop (transformers' Trainer) and its checkpoints."""
