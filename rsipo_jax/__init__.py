"""Language-model agents trained with RSIPO and its relatives, in JAX."""
