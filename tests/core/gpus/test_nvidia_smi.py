"""What is understood of nvidia-smi's answers, and what happens without one."""

import subprocess
from collections.abc import Callable
from unittest import mock

import pytest

from torchserve_py.core.gpus.nvidia_smi import Gpu, list_gpus, read_usage
from torchserve_py.core.serving.usage import GpuUsage

LIST = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1c.3g.20gb  Device  1: (UUID: MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/1/0)
GPU 1: Tesla T4 (UUID: GPU-aa1b2c3d-0000-1111-2222-333344445555)
"""


Answers = Callable[..., None]


@pytest.fixture
def nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Says what the tool writes, or how it fails."""

    def answers(text: str = "", error: Exception | None = None) -> None:
        ended = subprocess.CompletedProcess(["nvidia-smi"], 0, stdout=text)
        monkeypatch.setattr(subprocess, "run", mock.Mock(return_value=ended, side_effect=error))

    return answers


def test_gpus_and_their_instances(nvidia_smi: Answers) -> None:
    nvidia_smi(LIST)
    assert list_gpus() == (
        Gpu(
            0,
            "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77",
            ("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", "MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/1/0"),
        ),
        Gpu(1, "GPU-aa1b2c3d-0000-1111-2222-333344445555"),
    )


def test_usage(nvidia_smi: Answers) -> None:
    nvidia_smi("0, 17, 3, 678, 40960\n1, [N/A], [N/A], 5, 15360\n")
    assert read_usage() == (
        GpuUsage(0, 17.0, 3.0, 678.0, 40960.0),
        GpuUsage(1, None, None, 5.0, 15360.0),
    )


def test_no_tool_means_no_gpus_without_a_word(nvidia_smi: Answers, caplog: pytest.LogCaptureFixture) -> None:
    nvidia_smi(error=FileNotFoundError("nvidia-smi"))
    assert list_gpus() == ()
    assert read_usage() == ()
    assert caplog.records == []


@pytest.mark.parametrize(
    "error",
    [
        subprocess.TimeoutExpired(["nvidia-smi", "-L"], 15),
        subprocess.CalledProcessError(9, ["nvidia-smi", "-L"]),
        PermissionError("nvidia-smi"),
    ],
)
def test_a_failing_tool_means_no_gpus_and_is_told(
    error: Exception, nvidia_smi: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    nvidia_smi(error=error)
    assert list_gpus() == ()
    assert "nvidia-smi failed" in caplog.text


def test_a_tool_that_cannot_talk_to_its_driver_has_no_gpus(nvidia_smi: Answers) -> None:
    nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate with the driver.\n")
    assert list_gpus() == ()
