"""One file per method, on shared advantages and losses. `METHODS` names them as configs do."""

from rsipo_jax.methods.grpo import GRPO
from rsipo_jax.methods.hybrid import Hybrid
from rsipo_jax.methods.method import Method
from rsipo_jax.methods.opsd import OPSD
from rsipo_jax.methods.rsipo import RSIPO
from rsipo_jax.methods.skill_prompt import SkillPrompt
from rsipo_jax.methods.vanilla import Vanilla

METHODS: dict[str, Method] = {
    "vanilla": Vanilla(),
    "skill_prompt": SkillPrompt(),
    "opsd": OPSD(),
    "grpo": GRPO(),
    "hybrid": Hybrid(),
    "rsipo": RSIPO(),
}
