"""From prompts to sampled tokens with their behaviour log-probabilities."""
