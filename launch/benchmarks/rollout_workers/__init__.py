"""The other engines of `--suite=rollout`, each a script for an environment of its own, and what they share."""
