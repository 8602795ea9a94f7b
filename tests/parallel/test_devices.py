"""Eight devices compute what one computes, and two processes what one computes."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.launch.launching import python

TOLERANCE = 1e-5  # float32: only the order of sums differs
# Four-way `tensor` has more devices than there are key/value heads.
SOME = ("plain/2x2x2", "odd-scanned/2x2x2", "adapters/1x2x4")
MODELS, MESHES = ("plain", "odd-scanned", "adapters"), ("8x1x1", "1x8x1", "2x1x4", "1x2x4", "2x2x2", "1x4x2")


def run(folder: Path, devices: int, cases: tuple[str, ...], processes: int = 1) -> Path:
    """Runs the cases on forced CPU devices, `devices` in each process; the results are in `folder`."""
    folder.mkdir()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]

    def one(process: int) -> None:
        several = (str(process), str(processes), str(port)) if processes > 1 else ()
        done = python(
            "-m",
            "tests.parallel.on_devices",
            str(folder),
            str(devices),
            ",".join(cases),
            *several,
            timeout=1500,
        )
        assert done.returncode == 0, done.stderr[-4000:]

    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(one, range(processes)))
    return folder


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "device"
    return run(folder, 1, tuple(f"{model}/1x1x1" for model in MODELS))


def assert_equal(found: Path, wanted: Path, tolerance: float) -> None:
    with np.load(found) as a, np.load(wanted) as b:
        assert set(a.files) == set(b.files)
        for name in b.files:
            if "sums" in name:  # of hundreds of tokens
                np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance, err_msg=name)
            else:
                np.testing.assert_allclose(a[name], b[name], rtol=0, atol=tolerance, err_msg=name)


def test_eight_devices_are_one(tmp_path: Path, one_device: Path) -> None:
    found = run(tmp_path / "eight", 8, SOME)
    for case in SOME:
        model, _, mesh = case.partition("/")
        assert_equal(found / f"{model}-{mesh}.npz", one_device / f"{model}-1x1x1.npz", TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_eight_devices_are_one_on_every_mesh(tmp_path: Path, one_device: Path, model: str) -> None:
    found = run(tmp_path / "eight", 8, tuple(f"{model}/{mesh}" for mesh in MESHES))
    for mesh in MESHES:
        assert_equal(found / f"{model}-{mesh}.npz", one_device / f"{model}-1x1x1.npz", TOLERANCE)


def test_two_processes_are_one(tmp_path: Path, one_device: Path) -> None:
    """Four devices each; the mesh spans both, and each samples by itself."""
    found = run(tmp_path / "two", 4, ("odd-scanned/1x4x2",), processes=2)
    assert_equal(found / "odd-scanned-1x4x2.npz", one_device / "odd-scanned-1x1x1.npz", TOLERANCE)
