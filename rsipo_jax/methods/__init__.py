"""One file per method, on shared advantages and losses. `METHODS` names them as configs do."""

from rsipo_jax.methods.grpo import GRPO
from rsipo_jax.methods.method import Method
from rsipo_jax.methods.rsipo import RSIPO

METHODS: dict[str, Method] = {"grpo": GRPO(), "rsipo": RSIPO()}
