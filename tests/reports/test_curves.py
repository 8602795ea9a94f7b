from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from rsipo_jax.reports.curves import CURVES, curves, moving_average, save_curves
from rsipo_jax.reports.records import encode_line

LOG = [{"step": step, "success": step / 40, "gain_mean": -0.05 + step / 200} for step in range(1, 31)]


def test_moving_average_by_hand() -> None:
    np.testing.assert_allclose(moving_average(np.array([1.0, 3.0, 5.0, 10.0]), window=3), [1, 2, 3, 6])


def drawn(line: Line2D) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.asarray(line.get_xdata(), np.float64), np.asarray(line.get_ydata(), np.float64)


def test_curves_show_every_step_and_its_average_in_percent() -> None:
    success, gain = curves(LOG).axes
    assert (success.get_ylabel(), gain.get_ylabel()) == tuple(label for _, label, _ in CURVES)
    assert gain.get_xlabel() == "RL step"
    thin, thick = success.lines
    assert thin.get_linewidth() < thick.get_linewidth()
    rates = np.array([100 * record["success"] for record in LOG])
    steps, single = drawn(thin)
    np.testing.assert_allclose(steps, np.arange(1, 31))
    np.testing.assert_allclose(single, rates)
    np.testing.assert_allclose(drawn(thick)[1][-1], rates[-10:].mean())


def test_a_method_without_skills_has_one_panel() -> None:
    (axis,) = curves([{"step": 1, "success": 0.5}]).axes
    assert axis.get_xlabel() == "RL step"


def test_steps_without_a_gain_are_left_out() -> None:
    log = [{"step": 1, "success": 0.1}, {"step": 2, "success": 0.2, "gain_mean": 0.3}]
    np.testing.assert_allclose(drawn(curves(log).axes[1].lines[0])[0], [2])


def test_saved_as_a_picture_without_a_display(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b"".join(map(encode_line, LOG)))
    path = save_curves(tmp_path)
    assert path == tmp_path / "curves.png"
    picture = imread(path)
    assert picture.shape[:2] == (900, 1200)
    assert picture.std() > 0.01  # something is drawn


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="need a completed RL step"):
        save_curves(tmp_path)
