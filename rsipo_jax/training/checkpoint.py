"""Checkpoints with Orbax: the SFT policy, and the state of the RL stage after some of its steps."""

from __future__ import annotations

from pathlib import Path

import jax
import orbax.checkpoint as ocp

from rsipo_jax.models.transformer import Params
from rsipo_jax.skills.trust import PriorState
from rsipo_jax.training.state import TrainState

KEEP = 2  # checkpoints kept, the last ones


class Checkpoints:
    """The checkpoints of a run: `workdir/checkpoints/<step>`."""

    def __init__(self, workdir: Path) -> None:
        options = ocp.CheckpointManagerOptions(max_to_keep=KEEP, create=True)
        self._manager = ocp.CheckpointManager((workdir / "checkpoints").resolve(), options=options)

    def latest(self) -> int | None:
        """The step of the newest complete checkpoint."""
        return self._manager.latest_step()

    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: TrainState, prior: PriorState, distill_scale: float) -> None:
        """Saves in the background; what was given may be donated afterwards."""
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            optimizer=ocp.args.StandardSave((state.opt_state, state.updates)),
            prior=ocp.args.StandardSave(prior),
            distill_scale=ocp.args.JsonSave(distill_scale),
        )
        if not self._manager.save(step, args=items):
            raise RuntimeError(f"no checkpoint of step {step} was saved beside those of steps {self.steps()}")

    def restore(
        self, step: int, state: TrainState, prior: PriorState
    ) -> tuple[TrainState, PriorState, float]:
        """State, prior and scale of lambda (`schedules.next_scale`) of a checkpoint, structured and placed as those given."""
        items = ocp.args.Composite(
            params=ocp.args.StandardRestore(_abstract(state.params)),
            optimizer=ocp.args.StandardRestore(_abstract((state.opt_state, state.updates))),
            prior=ocp.args.StandardRestore(_abstract(prior)),
            distill_scale=ocp.args.JsonRestore(),
        )
        read = self._manager.restore(step, args=items)
        opt_state, updates = read["optimizer"]
        return TrainState(read["params"], opt_state, updates), read["prior"], read["distill_scale"]

    def restore_params(self, step: int, like: Params) -> Params:
        """The policy of a checkpoint alone."""
        items = ocp.args.Composite(params=ocp.args.StandardRestore(_abstract(like)))
        return self._manager.restore(step, args=items)["params"]

    def wait(self) -> None:
        """Until every save is complete."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves in flight."""
        self._manager.close()


def save_params(folder: Path, params: Params) -> None:
    """Writes parameters to a folder that does not exist yet; complete or absent."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder.resolve(), params)


def load_params(folder: Path, like: Params) -> Params:
    """Parameters that `save_params` wrote, in the structure of `like`."""
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder.resolve(), _abstract(like))


def _abstract(tree: object) -> object:
    return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
