"""The prior's state with the units spread over two devices, in a process of its own."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rsipo_jax.config import TrustConfig
from rsipo_jax.skills.prior import PriorState
from rsipo_jax.skills.trust import update_prior


def main() -> None:
    jax.config.update("jax_num_cpu_devices", 2)
    rng = np.random.default_rng(0)
    n = np.full(16, 8.0)
    s1, s0 = (rng.binomial(8, 0.5, 16).astype(float) for _ in range(2))
    valid, classes, task = rng.random(16) < 0.8, rng.integers(-1, 3, 16), np.arange(16) // 4
    mesh = Mesh(np.array(jax.devices()), ("units",))
    halves, whole = NamedSharding(mesh, PartitionSpec("units")), NamedSharding(mesh, PartitionSpec())
    for unit in ("task", "skill", "hier"):
        cfg = replace(TrustConfig(), unit=unit)
        # the classes of `hier` are those of tasks
        counts = (s1, n, s0, n, valid), (classes[task] if unit == "hier" else classes, task)

        def update(state: PriorState, *units: jax.Array, cfg: TrustConfig = cfg) -> PriorState:
            return update_prior(state, *units[:5], cfg, *units[5:])

        alone = jax.jit(update)(PriorState.zero(), *counts[0], *counts[1])
        placed = [jax.device_put(x, halves) for x in (*counts[0], *counts[1])]
        assert all(len(x.sharding.device_set) == 2 and not x.is_fully_replicated for x in placed)
        spread = jax.jit(update, out_shardings=whole)(PriorState.zero(), *placed)
        for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True):
            copies = [np.asarray(part.data) for part in b.addressable_shards]
            assert len(copies) == 2
            np.testing.assert_array_equal(copies[0], copies[1])
            np.testing.assert_allclose(copies[0], a, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main()
