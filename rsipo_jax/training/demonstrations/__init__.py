"""Demonstrations for the SFT cold start: played by experts, kept as an ordinary TFDS data set."""
