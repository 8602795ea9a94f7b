"""What can be played: one class for each environment, chosen by `config.env.name`."""

from pathlib import Path

from rsipo_jax.config import Config
from rsipo_jax.training.worlds.alfworld import Alfworld
from rsipo_jax.training.worlds.search import Search
from rsipo_jax.training.worlds.world import World

__all__ = ["World", "open_world"]


def open_world(config: Config, workdir: Path) -> World:
    """What the run plays; what it has to make first lies in `workdir` afterwards. Raises ConfigError."""
    worlds: dict[str, type[Alfworld | Search]] = {"alfworld": Alfworld, "search": Search}
    return worlds[config.env.name](config, workdir)
