"""The tags of a response: `<think>...</think><action>...</action>`, in search `<search>` or `<answer>` instead of `<action>`."""

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
ACTION_OPEN = "<action>"
ACTION_CLOSE = "</action>"

SEARCH_OPEN = "<search>"
SEARCH_CLOSE = "</search>"
ANSWER_OPEN = "<answer>"
ANSWER_CLOSE = "</answer>"
INFORMATION_OPEN = "<information>"
INFORMATION_CLOSE = "</information>"

TAGS = (THINK_OPEN, THINK_CLOSE, ACTION_OPEN, ACTION_CLOSE)
SEARCH_TAGS = (
    *(THINK_OPEN, THINK_CLOSE, SEARCH_OPEN, SEARCH_CLOSE),
    *(ANSWER_OPEN, ANSWER_CLOSE, INFORMATION_OPEN, INFORMATION_CLOSE),
)
