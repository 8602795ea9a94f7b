"""Decoder-only transformers as pure functions on a parameter pytree."""
