"""Rows and packing, the training state, the jitted update, and the loop that reads like the paper."""
