"""The tags of a response: `<think>...</think><action>...</action>`."""

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
ACTION_OPEN = "<action>"
ACTION_CLOSE = "</action>"

TAGS = (THINK_OPEN, THINK_CLOSE, ACTION_OPEN, ACTION_CLOSE)
