"""Attention under a bias matrix: the dense reference that every faster way is compared with."""
