"""Text for models: corpora as documents, documents as tokens."""
