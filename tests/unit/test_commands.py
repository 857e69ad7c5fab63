"""The command without flags: its commands, and what it says where it is not told what to do."""

import subprocess
import sys

import pytest

from torchserve_py.cli import main


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("serv", "did you mean torchserve-py serve?"),
        ("shout.py", "did you mean torchserve-py serve shout.py?"),
        (
            "version",
            "commands are key, serve, init, example, completion, store, replay; torchserve-py --help tells the flags",
        ),
    ],
)
def test_a_word_that_is_no_command_is_named_with_what_may_be_meant(tmp_path, monkeypatch, capsys, word, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shout.py").write_text("")
    assert main([word]) == 2
    assert f"There is no command '{word}': " in (printed := capsys.readouterr().err)
    assert printed.endswith(f"{told}\n")


def test_the_command_alone_tells_what_else_there_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TS_CONFIG_FILE", raising=False)
    assert main([]) == 1
    said = capsys.readouterr()
    assert said.out == "Missing mandatory parameter --model-store\n"
    assert "torchserve-py serve PATH" in said.err


def test_the_command_imports_nothing_heavy():
    code = "import sys; import torchserve_py.cli; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"aiohttp", "asyncio", "prometheus_client", "psutil", "pydantic", "torch", "numpy", "yaml"} & set(
        modules
    )


def test_help_has_every_command_and_no_markdown(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    commands = dict(line.split(maxsplit=1) for line in printed.partition("--help:\n")[2].splitlines())
    assert list(commands) == ["completion", "example", "init", "key", "replay", "serve", "store"]
    assert commands["store"] == "Check, repair, export, import or fork the sequences in a store"
    assert "weights of versions at the start" in " ".join(printed.split())
    assert [mark for mark in ("](", "`") if mark in printed] == []
