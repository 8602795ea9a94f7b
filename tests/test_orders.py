"""Random orders are addressed: by seed, by purpose and by number, and by nothing else."""

from __future__ import annotations

from rsipo_jax.orders import order_stream


def test_an_order_is_a_function_of_its_address() -> None:
    def order(*address: str | int) -> list[int]:
        return order_stream(*address).permutation(50).tolist()  # type: ignore[arg-type]

    assert order(0, "tasks", 3) == order(0, "tasks", 3)
    others = [order(1, "tasks", 3), order(0, "rows", 3), order(0, "tasks", 4), order(0, "tasks")]
    assert order(0, "tasks", 3) not in others
