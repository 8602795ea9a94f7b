"""The quickstart notebook: its two files say the same, and it runs from top to bottom on a few steps."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jupytext
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"
SECONDS = 240  # for one cell: far above what it takes, so that only a hang fails


class ThisPython(KernelSpecManager):
    """Kernels of the running interpreter, whatever kernels this machine has installed."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name=kernel_name, language="python")


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> NotebookNode:
    """The notebook after its quick run, in a folder of its own."""
    folder = tmp_path_factory.mktemp("quickstart")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    notebook = jupytext.read(NOTEBOOK)
    client = NotebookClient(
        notebook,
        km=AsyncKernelManager(kernel_spec_manager=ThisPython()),
        timeout=SECONDS,
        resources={"metadata": {"path": str(folder)}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RSIPO_QUICK", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        client.execute()
    return notebook


def test_the_two_files_are_one_notebook() -> None:
    script, notebook = jupytext.read(NOTEBOOK.with_suffix(".py")), jupytext.read(NOTEBOOK)
    pairs = [[(cell.cell_type, cell.source) for cell in read.cells] for read in (script, notebook)]
    assert pairs[0] == pairs[1], "run `jupytext --sync notebooks/quickstart.py`"


def test_the_notebook_is_stored_without_outputs() -> None:
    for cell in jupytext.read(NOTEBOOK).cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None, "run `jupytext --to ipynb` anew"


def test_it_trains_two_steps_and_draws_them(executed: NotebookNode) -> None:
    log = text(executed, "loop.run")
    assert "step 1/2" in log and "step 2/2" in log
    drawn = [output.data for output in outputs(executed, "curves(read_records") if "data" in output]
    assert any("image/png" in data for data in drawn)


def test_it_shows_the_table_of_the_held_out_games(executed: NotebookNode) -> None:
    table = text(executed, "panel_table([sft, rl]")
    for part in (
        "Success on valid_unseen",
        "SFT",
        "RL",
        "look at obj in light",
        "episode-weighted mean",
        "paired over 6 games",
    ):
        assert part in table


def test_it_plays_one_game_without_and_with_a_skill(executed: NotebookNode) -> None:
    plain, helped = text(executed, "play()\n"), text(executed, "play(skill)\n")
    opening = plain.splitlines()[0]
    assert "Skill: " in helped and "Skill: " not in plain
    for dialogue in (plain, helped):
        assert (
            opening in dialogue
            and "Your task is to:" in dialogue
            and "\n> " in dialogue
            and " turns\n" in dialogue
        )


def test_the_method_of_the_last_cell_silences_the_teacher_of_won_episodes(executed: NotebookNode) -> None:
    told = text(executed, "for method in (RSIPO(), LostOnly())")
    assert "gain +0.50" in told
    ours, lost_only = told.split("LostOnly")
    trust = [
        line.split("[")[1].rstrip("]").split()
        for half in (ours, lost_only)
        for line in half.splitlines()
        if "trust in" in line
    ]
    assert [float(w) > 0 for w in trust[0]] == [True] * 4
    assert [float(w) > 0 for w in trust[1]] == [False, True, True, True]


def outputs(notebook: NotebookNode, source: str) -> list[Any]:
    """The outputs of the one code cell that contains `source` (a trailing newline stands for the cell's end)."""
    [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and source in f"{cell.source}\n"]
    return cell.outputs


def text(notebook: NotebookNode, source: str) -> str:
    """All that this cell printed or displayed, as plain text."""
    return "".join(
        output.text if output.output_type == "stream" else output.data.get("text/plain", "")
        for output in outputs(notebook, source)
    )
